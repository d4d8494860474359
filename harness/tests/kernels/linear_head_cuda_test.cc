// Linear's kHead: outputs of large weights, the largest of each row, and rows that it does not
// write.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/linear_case.h"
#include "harness/tests/kernels/linear_cuda_case.h"
#include "kernels/device/current_device.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::LinearCase;
using DeviceCase = testing::LinearDeviceCase;
using LinearHeadCudaTest = testing::HopperCudaTest;
using testing::Reference;
using testing::RunOnDevice;

constexpr LinearVariant kHead = LinearVariant::kHead;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Shares of less than a tile, of whole tiles, and of several with a smaller one at the end; rings
// that hold all of K and that wrap; outputs that do not fit pairs.
TEST_F(LinearHeadCudaTest, ExactSumsOfEveryShare) {
  const int64_t sms = CurrentDeviceFacts().sm_count;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t tokens : {1, 8, 9, 31, 64, 65, 100, 128}) {
      for (const int64_t out : {int64_t{1}, int64_t{200}, sms * 288 + 37}) {
        for (const int64_t in : {256, 704}) {
          // For time, the large ones with one of the two alone.
          if (out > 200 && (dtype == DType::kF16) != (in == 256)) continue;
          if (out > 200 && tokens != 9 && tokens != 64 && tokens != 100) continue;
          const LinearCase c({.dtype = dtype,
                              .tokens = tokens,
                              .in = in,
                              .out = out,
                              .out_f32 = true,
                              .integers = true,
                              .pad = out == 200 ? 8 : 0});
          EXPECT_TRUE(RunOnDevice(c, kHead) == Reference(c))
              << Name(dtype) << ", tokens " << tokens << ", in " << in << ", out " << out;
        }
      }
    }
  }
}

TEST_F(LinearHeadCudaTest, NormedRowsAreWithinTheirBound) {
  for (const int64_t tokens : {9, 64, 128}) {
    const LinearCase c(
        {.tokens = tokens, .in = 1024, .out = 600, .norm = true, .out_f32 = true, .pad = 8});
    EXPECT_TRUE(c.Check(RunOnDevice(c, kHead))) << "tokens " << tokens;
  }
}

// A problem whose kernel finds the largest outputs as well.
struct BestCase {
  explicit BestCase(const LinearCase& c) : device(c, kHead) {
    parts = LinearBestParts(device.params, CurrentDeviceFacts());
    best = DeviceBuffer(c.setup.tokens * parts * int64_t{sizeof(uint64_t)});
    best.Fill(0xff);
    device.params.best = best.as<uint64_t>();
  }

  // The ids that win in rows of the kernel's output.
  std::vector<int64_t> Ids() const {
    const std::vector<uint64_t> all = best.ToHost<uint64_t>();
    std::vector<int64_t> ids;
    for (int64_t t = 0; t < device.params.num_tokens; ++t) {
      const auto row = all.begin() + t * parts;
      ids.push_back(static_cast<uint32_t>(~*std::max_element(row, row + parts)));
    }
    return ids;
  }

  DeviceCase device;
  int32_t parts = 0;
  DeviceBuffer best;
};

// The first of the largest outputs of a row. NaN counts as -inf, and the largest float as +inf.
int64_t FirstLargest(const LinearCase& c, const HostTensor& out, int64_t token) {
  int64_t best = 0;
  for (int64_t i = 1; i < c.setup.out; ++i) {
    const double value = out[token * c.OutStride() + i], other = out[token * c.OutStride() + best];
    if (value > other || (std::isnan(other) && value > -kInf)) best = i;
  }
  return best;
}

// Sums of integers are often equal, so that the order of ids counts.
TEST_F(LinearHeadCudaTest, FindsTheFirstOfTheLargestOutputs) {
  EXPECT_LE(PlanLinear({.out_f32 = true,
                        .variant = kHead,
                        .num_tokens = 64,
                        .in_features = 256,
                        .out_features = 1 << 20},
                       CurrentDeviceFacts())
                .head.Parts(),
            MostLinearBestParts(CurrentDeviceFacts()));
  const int64_t sms = CurrentDeviceFacts().sm_count;
  for (const int64_t tokens : {1, 40, 64, 65, 128}) {
    for (const int64_t out : {int64_t{3}, int64_t{1000}, sms * 288 + 37}) {
      for (const bool integers : {false, true}) {
        LinearCase c(
            {.tokens = tokens, .in = 256, .out = out, .out_f32 = true, .integers = integers});
        const auto set_row = [&](int64_t row, double value) {
          if (row >= out) return;
          for (int64_t k = 0; k < 256; ++k) c.weight.Set(row * 256 + k, value);
        };
        set_row(0, kNan);
        set_row(out / 2, kNan);
        set_row(out - 1, -kInf);  // with x of both signs: NaN
        BestCase one(c);
        const HostTensor result = one.device.Run();
        const std::vector<int64_t> ids = one.Ids();
        for (int64_t t = 0; t < tokens; ++t) {
          EXPECT_EQ(ids[static_cast<size_t>(t)], FirstLargest(c, result, t))
              << "token " << t << " of " << tokens << ", out " << out << ", integers " << integers;
        }
      }
    }
  }
}

// Rows of one sign, so that outputs are +inf and -inf instead of NaN.
TEST_F(LinearHeadCudaTest, InfinitiesAndRowsWithoutAFiniteOutput) {
  for (const int64_t tokens : {12, 70}) {
    LinearCase c({.tokens = tokens, .in = 256, .out = 700, .out_f32 = true, .integers = true});
    for (int64_t i = 0; i < tokens * c.XStride(); ++i) c.x.Set(i, 1);
    for (int64_t i = 0; i < c.weight.size(); ++i) c.weight.Set(i, -kInf);
    BestCase lowest(c);
    lowest.device.Run();
    EXPECT_EQ(lowest.Ids(), std::vector<int64_t>(static_cast<size_t>(tokens), 0));
    for (const int64_t row : {123, 400, 650}) {
      for (int64_t k = 0; k < 256; ++k) c.weight.Set(row * 256 + k, row == 123 ? 3e38 : kInf);
    }
    BestCase highest(c);  // the sums of row 123 overflow
    highest.device.Run();
    EXPECT_EQ(highest.Ids(), std::vector<int64_t>(static_cast<size_t>(tokens), 123));
  }
}

TEST_F(LinearHeadCudaTest, RowsOfWhichOnlyTheBestIsWantedAreNotWritten) {
  for (const int64_t tokens : {10, 64, 128}) {
    const LinearCase c(
        {.tokens = tokens, .in = 256, .out = 5000, .out_f32 = true, .integers = true});
    BestCase all(c);
    const HostTensor expected = all.device.Run();
    std::vector<int32_t> only_best;
    for (int64_t t = 0; t < tokens; ++t) only_best.push_back(t % 3 != 1);
    const DeviceBuffer flags(only_best);
    BestCase some(c);
    some.device.params.only_best = flags.as<int32_t>();
    const HostTensor result = some.device.Run();
    EXPECT_EQ(some.Ids(), all.Ids());
    for (int64_t t = 0; t < tokens; ++t) {
      for (const int64_t i : {0, 1, 127, 128, 2500, 4999}) {
        const double value = result[t * c.OutStride() + i];
        if (only_best[static_cast<size_t>(t)]) {
          EXPECT_TRUE(std::isnan(value)) << "row " << t << ", column " << i;
        } else {
          EXPECT_EQ(value, expected[t * c.OutStride() + i]) << "row " << t << ", column " << i;
        }
      }
    }
  }
}

// Norms, projections and draws in a row, each of which starts before the one before it has ended.
// x and the flags change between rounds, and what a launch reads too early is that of another
// round.
TEST_F(LinearHeadCudaTest, DependentLaunchesReadWhatTheOneBeforeWrites) {
  constexpr int kRounds = 4;
  const int64_t out = int64_t{CurrentDeviceFacts().sm_count} * 160 + 37;
  for (const int64_t tokens : {16, 64, 128}) {
    std::vector<LinearCase> cases;
    std::vector<HostTensor> expected;
    for (int round = 0; round < kRounds; ++round) {
      cases.push_back(LinearCase({.tokens = tokens,
                                  .in = 256,
                                  .out = out,
                                  .norm = true,
                                  .out_f32 = true,
                                  .seed = static_cast<uint64_t>(round / 2 + 1)}));
    }
    std::vector<std::unique_ptr<BestCase>> rounds;
    for (const LinearCase& c : cases) rounds.push_back(std::make_unique<BestCase>(c));
    for (const auto& round : rounds) {
      round->device.params.workspace = rounds[0]->device.params.workspace;  // so x is overwritten
      round->device.params.weight = rounds[0]->device.params.weight;
    }
    std::vector<std::vector<int64_t>> alone;
    for (const auto& round : rounds) {
      Launch(round->device.params, {});
      alone.push_back(round->Ids());
      expected.push_back(round->device.Result());
      round->device.Poison();
      round->best.Fill(0);
    }
    const DeviceBuffer held(int64_t{512} << 20);
    TOKLINE_CUDA(cudaMemsetAsync(held.data(), 0, static_cast<size_t>(held.bytes()), nullptr));
    for (const auto& round : rounds) {
      Launch(round->device.params, {.stream = nullptr, .dependent = true});
    }
    for (size_t round = 0; round < rounds.size(); ++round) {
      EXPECT_EQ(rounds[round]->Ids(), alone[round]) << "round " << round << ", tokens " << tokens;
      EXPECT_TRUE(rounds[round]->device.Result() == expected[round])
          << "round " << round << ", tokens " << tokens;
    }
  }
}

// For racecheck: a ring that wraps within a tile and from tile to tile.
TEST_F(LinearHeadCudaTest, SmallestHeadsOfSeveralTiles) {
  for (const int64_t tokens : {16, 128}) {
    const LinearCase c({.tokens = tokens,
                        .in = 576,
                        .out = int64_t{CurrentDeviceFacts().sm_count} * 160,
                        .out_f32 = true,
                        .integers = true});
    EXPECT_TRUE(RunOnDevice(c, kHead) == Reference(c)) << "tokens " << tokens;
  }
}

}  // namespace
}  // namespace tokline
