// LayerNorm on the device.
#include "kernels/layernorm/layernorm.h"

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/layernorm_case.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::LayerNormCase;
using testing::ToDevice;
using testing::ToHost;

class LayerNormCudaTest : public testing::CudaTest {
 protected:
  static ::testing::AssertionResult RunAndCheck(const LayerNormCase& c) {
    const DeviceBuffer x = ToDevice(c.x), weight = ToDevice(c.weight), bias = ToDevice(c.bias);
    const DeviceBuffer out = ToDevice(c.NewOut());
    LayerNormParams params = c.Params(out.data());
    params.x = x.data();
    params.weight = weight.data();
    params.bias = bias.data();
    Launch(params, {});
    return c.Check(ToHost(out, c.setup.dtype));
  }
};

// Vectors and single elements, warps and blocks a row, one access a thread and many.
TEST_F(LayerNormCudaTest, EveryHiddenSizeIsInItsBound) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {1, 7, 8, 31, 64, 100, 128, 255, 256, 264, 768, 1000, 1023, 1600,
                                 4096, 8192, 9001, 16384}) {
      // The last one aligns every row, whether or not its end is.
      for (const int64_t pad : {int64_t{0}, int64_t{8}, int64_t{3}, 8 - hidden % 8}) {
        const LayerNormCase c({.dtype = dtype, .tokens = 5, .hidden = hidden, .pad = pad});
        EXPECT_TRUE(RunAndCheck(c)) << Name(dtype) << ", hidden " << hidden << ", pad " << pad;
      }
    }
  }
}

TEST_F(LayerNormCudaTest, ManyRows) {
  for (const int64_t hidden : {64, 768, 1032}) {
    for (const int64_t tokens : {511, 513, 2050}) {
      const LayerNormCase c({.tokens = tokens, .hidden = hidden, .pad = 8});
      EXPECT_TRUE(RunAndCheck(c)) << tokens << " x " << hidden;
    }
  }
}

TEST_F(LayerNormCudaTest, MoreRowsThanAGridDimensionOfYHolds) {
  EXPECT_TRUE(RunAndCheck(LayerNormCase({.tokens = 300'001, .hidden = 16})));
}

// mean(x^2) - mean^2 would have no digits left.
TEST_F(LayerNormCudaTest, MeanFarFromZeroKeepsTheVariance) {
  for (const double offset : {-300.0, 1000.0}) {
    EXPECT_TRUE(RunAndCheck(
        LayerNormCase({.dtype = DType::kF16, .tokens = 3, .hidden = 768, .offset = offset})));
    EXPECT_TRUE(RunAndCheck(LayerNormCase({.tokens = 3, .hidden = 1001, .offset = offset})));
  }
}

TEST_F(LayerNormCudaTest, Fp16SumsMayExceedFp16) {
  LayerNormCase c({.dtype = DType::kF16, .tokens = 2, .hidden = 512});
  for (int64_t i = 0; i < 2 * 512; ++i) c.x.Set(i, i % 3 == 0 ? 60000.0 : -25000.0);
  EXPECT_TRUE(RunAndCheck(c));
}

TEST_F(LayerNormCudaTest, OutMayBeX) {
  for (const int64_t hidden : {128, 1000, 1001, 16384}) {
    const LayerNormCase c({.tokens = 4, .hidden = hidden});
    const DeviceBuffer x = ToDevice(c.x), weight = ToDevice(c.weight), bias = ToDevice(c.bias);
    LayerNormParams params = c.Params(x.data());
    params.x = x.data();
    params.weight = weight.data();
    params.bias = bias.data();
    Launch(params, {});
    EXPECT_TRUE(c.Check(ToHost(x, DType::kBf16))) << hidden;
  }
}

// A dependent launch that reads too early shows.
TEST_F(LayerNormCudaTest, DependentChainEqualsPlainChain) {
  const LayerNormCase c({.tokens = 64, .hidden = 2048});
  const DeviceBuffer weight = ToDevice(c.weight), bias = ToDevice(c.bias);
  const auto chain = [&](bool dependent) {
    const DeviceBuffer ping = ToDevice(c.x), pong = ToDevice(c.x);
    LayerNormParams params = c.Params(nullptr);
    params.weight = weight.data();
    params.bias = bias.data();
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

TEST_F(LayerNormCudaTest, NoTokensLaunchNothing) {
  EXPECT_NO_THROW(Launch(LayerNormParams{.hidden_size = 8}, {}));
}

}  // namespace
}  // namespace tokline
