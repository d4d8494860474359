// RMSNorm on the device.
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/rmsnorm_case.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "reference/rmsnorm.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::RmsNormCase;
using testing::RmsNormSetup;
using testing::ToDevice;
using testing::ToHost;

class RmsNormCudaTest : public testing::CudaTest {
 protected:
  static ::testing::AssertionResult RunAndCheck(const RmsNormCase& c,
                                                const LaunchOptions& options = {}) {
    const DeviceBuffer x = ToDevice(c.x), add = ToDevice(c.add), weight = ToDevice(c.weight);
    const DeviceBuffer residual = ToDevice(c.NewOut()), out = ToDevice(c.NewOut());
    RmsNormParams params = c.Params(residual.data(), out.data());
    params.x = x.data();
    params.weight = weight.data();
    if (params.add) params.add = add.data();
    Launch(params, options);
    return c.Check(ToHost(residual, c.setup.dtype), ToHost(out, c.setup.dtype));
  }
};

// Vectors and single elements, warps and blocks a row, one batch of accesses and several; odd sizes
// must leave the next row alone, which Check sees in the padding and in every row.
TEST_F(RmsNormCudaTest, EveryHiddenSizeIsInItsInterval) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {1, 7, 8, 31, 64, 100, 128, 255, 256, 264, 1000, 1023, 1024, 2880,
                                 4096, 8192, 9001, 16384}) {
      for (const bool add : {false, true}) {
        // The last one aligns every row, whether or not its end is.
        for (const int64_t pad : {int64_t{0}, int64_t{8}, int64_t{3}, 8 - hidden % 8}) {
          const RmsNormCase c(
              {.dtype = dtype, .tokens = 5, .hidden = hidden, .add = add, .pad = pad});
          EXPECT_TRUE(RunAndCheck(c))
              << Name(dtype) << ", hidden " << hidden << ", add " << add << ", pad " << pad;
        }
      }
    }
  }
}

TEST_F(RmsNormCudaTest, ManyRows) {
  for (const int64_t hidden : {64, 128, 1024, 1032}) {
    for (const int64_t tokens : {511, 513, 2050}) {
      const RmsNormCase c({.tokens = tokens, .hidden = hidden, .add = true, .pad = 8});
      EXPECT_TRUE(RunAndCheck(c)) << tokens << " x " << hidden;
    }
  }
}

TEST_F(RmsNormCudaTest, MoreRowsThanAGridDimensionOfYHolds) {
  const RmsNormCase c({.tokens = 300'001, .hidden = 16});
  EXPECT_TRUE(RunAndCheck(c));
}

// The last row starts beyond 2^31 elements, and beyond 4 GiB.
TEST_F(RmsNormCudaTest, RowOffsetsExceed32Bits) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  constexpr int64_t kHidden = 1024;
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < (size_t{10} << 30)) GTEST_SKIP() << "less than 10 GiB of device memory free";
  const RmsNormCase c({.tokens = 2, .hidden = kHidden});
  const DeviceBuffer wide(2 * (kStride + kHidden)), weight = ToDevice(c.weight);
  const DeviceBuffer out = ToDevice(c.NewOut());
  for (int64_t t = 0; t < 2; ++t) {
    ASSERT_EQ(cudaMemcpy(wide.as<char>() + 2 * t * kStride,
                         static_cast<const char*>(c.x.data()) + 2 * t * kHidden, 2 * kHidden,
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  RmsNormParams params = c.Params(nullptr, out.data());
  params.x = wide.data();
  params.x_stride = kStride;
  params.weight = weight.data();
  Launch(params, {});
  EXPECT_TRUE(c.Check(c.NewOut(), ToHost(out, DType::kBf16)));
}

TEST_F(RmsNormCudaTest, Fp16SumOfSquaresMayExceedFp16) {
  RmsNormCase c({.dtype = DType::kF16, .tokens = 2, .hidden = 512});
  for (int64_t i = 0; i < 2 * 512; ++i) c.x.Set(i, i % 3 == 0 ? 60000.0 : -25000.0);
  for (int64_t i = 0; i < 512; ++i) c.weight.Set(i, 1 + i % 5);
  EXPECT_TRUE(RunAndCheck(c));
}

TEST_F(RmsNormCudaTest, OutMayBeX) {
  for (const int64_t hidden : {1000, 1001, 16384}) {
    const RmsNormCase c({.tokens = 4, .hidden = hidden});
    const DeviceBuffer x = ToDevice(c.x), weight = ToDevice(c.weight);
    RmsNormParams params = c.Params(nullptr, x.data());
    params.x = x.data();
    params.weight = weight.data();
    Launch(params, {});
    EXPECT_TRUE(c.Check(c.NewOut(), ToHost(x, DType::kBf16))) << hidden;
  }
}

TEST_F(RmsNormCudaTest, ResidualOutMayBeXOrAdd) {
  for (const int64_t hidden : {1000, 1001, 16384}) {
    const RmsNormCase c({.tokens = 4, .hidden = hidden, .add = true});
    for (const bool is_x : {false, true}) {
      const DeviceBuffer x = ToDevice(c.x), add = ToDevice(c.add), weight = ToDevice(c.weight);
      const DeviceBuffer out = ToDevice(c.NewOut());
      const DeviceBuffer& residual = is_x ? x : add;
      RmsNormParams params = c.Params(residual.data(), out.data());
      params.x = x.data();
      params.add = add.data();
      params.weight = weight.data();
      Launch(params, {});
      EXPECT_TRUE(c.Check(ToHost(residual, DType::kBf16), ToHost(out, DType::kBf16)))
          << hidden << ", residual_out is " << (is_x ? "x" : "add");
    }
  }
}

// A dependent launch that reads too early shows.
TEST_F(RmsNormCudaTest, DependentChainEqualsPlainChain) {
  const RmsNormCase c({.tokens = 64, .hidden = 2048});
  const DeviceBuffer weight = ToDevice(c.weight);
  const auto chain = [&](bool dependent) {
    const DeviceBuffer ping = ToDevice(c.x), pong = ToDevice(c.x);
    RmsNormParams params = c.Params(nullptr, nullptr);
    params.weight = weight.data();
    for (int layer = 0; layer < 40; ++layer) {
      params.x = layer % 2 == 0 ? ping.data() : pong.data();
      params.out = layer % 2 == 0 ? pong.data() : ping.data();
      Launch(params, {.dependent = dependent});
    }
    return ToHost(ping, DType::kBf16);
  };
  const HostTensor plain = chain(false);
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(chain(true) == plain);
}

TEST_F(RmsNormCudaTest, NoTokensLaunchNothing) {
  EXPECT_NO_THROW(Launch(RmsNormParams{.hidden_size = 8}, {}));
}

}  // namespace
}  // namespace tokline
