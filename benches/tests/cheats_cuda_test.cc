// Tries ways to get a false figure on a real device, with a real kernel: each must be refused with
// the right message, and the honest launch must be accepted. cheats_test tries more of them on a
// simulated device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "benches/measure_row.h"
#include "harness/measure/fingerprint.h"
#include "harness/measure/lead_in.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device_buffer.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/activation/activation.h"
#include "kernels/common/error.h"
#include "reference/activation.h"

namespace tokline::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kTokens = 4096;
constexpr int64_t kIntermediate = 3072;
constexpr int64_t kOutBytes = kTokens * kIntermediate * 2;

// Launches the kernel, or pretends to.
using Launcher = std::function<void(const ActivationParams&, const LaunchOptions&)>;

void Honest(const ActivationParams& params, const LaunchOptions& options) {
  Launch(params, options);
}

// Gated SiLU over 75 MB, with enough sets for a cold row.
class LaunchedCase : public BenchCase {
 public:
  explicit LaunchedCase(Launcher launcher, int64_t tokens = kTokens)
      : launcher_(std::move(launcher)), tokens_(tokens) {
    x_ = tensors_.Random(DType::kBf16, tokens, 2 * kIntermediate, /*log2_scale=*/1);
    out_ = tensors_.Output(DType::kBf16, tokens, kIntermediate, kElementwise);
  }

  Cost GetCost() const override { return CostOf(Bind(SymbolicSet(tensors_))); }
  void RunReference(const TensorSet& host) const override { ActivationReference(Bind(host)); }
  void LaunchCuda(const TensorSet& device, const LaunchOptions& options) const override {
    launcher_(Bind(device), options);
  }
  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> tokens = PickIndices(tokens_, 32, seed);
    SampledCase sampled(
        std::make_unique<LaunchedCase>(launcher_, static_cast<int64_t>(tokens.size())));
    sampled.maps[static_cast<size_t>(x_)].rows = sampled.maps[static_cast<size_t>(out_)].rows =
        tokens;
    return sampled;
  }

 private:
  ActivationParams Bind(const TensorSet& set) const {
    return {.kind = ActivationKind::kGatedSilu,
            .dtype = DType::kBf16,
            .num_tokens = tokens_,
            .intermediate_size = kIntermediate,
            .x = set.At(x_),
            .x_stride = 2 * kIntermediate,
            .out = set.At(out_),
            .out_stride = kIntermediate};
  }

  Launcher launcher_;
  int64_t tokens_;
  int x_, out_;
};

// The rows [begin, end) of the problem.
ActivationParams Rows(ActivationParams params, int64_t begin, int64_t end) {
  const int64_t element = SizeOf(params.dtype);
  params.x = static_cast<const std::byte*>(params.x) + begin * params.x_stride * element;
  params.out = static_cast<std::byte*>(params.out) + begin * params.out_stride * element;
  params.num_tokens = end - begin;
  return params;
}

class CheatsCudaTest : public tokline::testing::CudaTest {
 protected:
  static KernelMeasurement Measure(const Launcher& launcher, uint64_t seed = 1) {
    const std::unique_ptr<Execution> execution = MakeDeviceExecution();
    KernelMeasurement m{.origin = {.run_id = "cheats",
                                   .implementation = "cuda",
                                   .dtype = "bf16",
                                   .device = execution->DeviceName()},
                        .kernel = "activation",
                        .shape = {{"name", "gated_silu"}},
                        .chain = "plain"};
    PreparedCase prepared(std::make_unique<LaunchedCase>(launcher), *execution);
    std::mt19937_64 rng(seed);
    MeasureRow(prepared, *execution, {.rule = {.samples = kMinSamples}}, rng, m);
    return m;
  }
  // Returns why the row is refused. Every cheat is tried with several seeds, so that it cannot
  // succeed by luck; the returned reason is that of the first.
  static std::string Reason(const std::function<Launcher()>& make_launcher) {
    std::string reason;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const std::string refusal = Measure(make_launcher(), seed).trouble.failure;
      if (refusal.empty()) return StrCat("stands with seed ", seed);
      if (seed == 1) reason = refusal;
    }
    return reason;
  }
};

// This test comes first, because the cheats launch kernels on a second stream, which slows a
// process down.
TEST_F(CheatsCudaTest, AnHonestLaunchStands) {
  const KernelMeasurement m = Measure(Honest);
  EXPECT_EQ(m.trouble.failure, "");
  EXPECT_EQ(m.cache, "cold");
  EXPECT_EQ(m.verified.audits, 3);
  EXPECT_EQ(m.samples.us.size(), static_cast<size_t>(kMinSamples));
}

TEST_F(CheatsCudaTest, HonestHalvesStand) {
  // A problem in two launches shows that Rows() by itself does not make a row fail.
  const KernelMeasurement m = Measure([](const ActivationParams& p, const LaunchOptions& options) {
    Launch(Rows(p, 0, kTokens / 2), options);
    Launch(Rows(p, kTokens / 2, kTokens), options);
  });
  EXPECT_EQ(m.trouble.failure, "");
}

TEST_F(CheatsCudaTest, WorkOnAnotherStreamIsMissingFromTheGraph) {
  const UniqueStream side = MakeStream();
  const Launcher cheat = [&](const ActivationParams& p, const LaunchOptions&) {
    Launch(p, {.stream = side.get()});
  };
  std::string reason;
  try {
    reason = Measure(cheat).trouble.failure;  // unless the work was late, it is right before timing
  } catch (const RuntimeFailure& failure) {
    reason = failure.what();
  }
  EXPECT_THAT(reason, ::testing::AnyOf(HasSubstr("another stream"),
                                       HasSubstr("nan (not written) instead of")));
  TOKLINE_CUDA(cudaDeviceSynchronize());
}

TEST_F(CheatsCudaTest, WorkOnAnotherStreamBesideAnEmptyKernel) {
  const UniqueStream side = MakeStream();
  const auto cheat = [&]() -> Launcher {
    return [&](const ActivationParams& p, const LaunchOptions& options) {
      Launch(p, {.stream = side.get()});
      Spin(0, options.stream);
    };
  };
  EXPECT_THAT(Reason(cheat),
              AllOf(StartsWith("unverified"), HasSubstr("nan (not written) instead of")));
  TOKLINE_CUDA(cudaDeviceSynchronize());
}

TEST_F(CheatsCudaTest, RememberedOutputs) {
  // Computes once and copies that result from then on.
  const auto copies = [] {
    auto remembered = std::make_shared<DeviceBuffer>();
    return [remembered](const ActivationParams& p, const LaunchOptions& options) {
      const auto copy = [&](void* to, const void* from) {
        TOKLINE_CUDA(
            cudaMemcpyAsync(to, from, kOutBytes, cudaMemcpyDeviceToDevice, options.stream));
      };
      if (remembered->data() == nullptr) {
        *remembered = DeviceBuffer(kOutBytes);
        Launch(p, options);
        copy(remembered->data(), p.out);
      } else {
        copy(p.out, remembered->data());
      }
    };
  };
  EXPECT_THAT(Reason(copies), StartsWith("unverified"));
  // Computes only in the first two launches, those before timing.
  const auto first_only = []() -> Launcher {
    auto launches = std::make_shared<int>(0);
    return [launches](const ActivationParams& p, const LaunchOptions& options) {
      if (++*launches <= 2) {
        Launch(p, options);
      } else {
        Spin(0, options.stream);
      }
    };
  };
  EXPECT_THAT(Reason(first_only),
              AllOf(StartsWith("unverified after"), HasSubstr("nan (not written) instead of")));
}

TEST_F(CheatsCudaTest, SkippedRows) {
  const auto last = []() -> Launcher {
    return [](const ActivationParams& p, const LaunchOptions& options) {
      Launch(Rows(p, 0, kTokens - 1), options);
    };
  };
  EXPECT_THAT(Reason(last), AllOf(StartsWith("unverified before timing"),
                                  HasSubstr("nan (not written) instead of")));
  // A quarter in the middle is missing. Rows are compared at random, and a gap of this size is
  // found.
  const auto middle = []() -> Launcher {
    return [](const ActivationParams& p, const LaunchOptions& options) {
      Launch(Rows(p, 0, kTokens / 2), options);
      Launch(Rows(p, kTokens * 3 / 4, kTokens), options);
    };
  };
  EXPECT_THAT(Reason(middle),
              AllOf(StartsWith("unverified"), HasSubstr("nan (not written) instead of")));
}

TEST_F(CheatsCudaTest, StaleBuffers) {
  // Every launch reads the input of the first one, which stays in the L2, and writes its own
  // output.
  const auto cheat = [] {
    auto first = std::make_shared<const void*>(nullptr);
    return [first](ActivationParams p, const LaunchOptions& options) {
      if (*first == nullptr) *first = p.x;
      p.x = *first;
      Launch(p, options);
    };
  };
  EXPECT_THAT(Reason(cheat), StartsWith("unverified"));
}

}  // namespace
}  // namespace tokline::bench
