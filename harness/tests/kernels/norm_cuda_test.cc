// RMSNorm and LayerNorm on the device.
#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/norm_case.h"
#include "kernels/common/error.h"
#include "kernels/norm/norm.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::NormCase;
using testing::NormSetup;
using testing::ToDevice;
using testing::ToHost;

const NormSetup kForms[] = {
    {.kind = NormKind::kRms}, {.kind = NormKind::kRms, .add = true}, {.kind = NormKind::kLayer}};
constexpr NormKind kKinds[] = {NormKind::kRms, NormKind::kLayer};

class NormCudaTest : public testing::CudaTest {
 protected:
  // The case's weights in device memory, and its params that use them.
  struct DeviceWeights {
    DeviceBuffer weight, bias;

    explicit DeviceWeights(const NormCase& c)
        : weight(ToDevice(c.weight)), bias(ToDevice(c.bias)) {}
    NormParams Params(const NormCase& c, const void* x, void* residual_out, void* out) const {
      NormParams params = c.Params(residual_out, out);
      params.x = x;
      params.weight = weight.data();
      if (params.bias) params.bias = bias.data();
      return params;
    }
  };

  static ::testing::AssertionResult RunAndCheck(const NormCase& c) {
    const DeviceBuffer x = ToDevice(c.x), add = ToDevice(c.add);
    const DeviceBuffer residual = ToDevice(c.NewOut()), out = ToDevice(c.NewOut());
    const DeviceWeights weights(c);
    NormParams params = weights.Params(c, x.data(), residual.data(), out.data());
    if (params.add) params.add = add.data();
    Launch(params, {});
    return c.Check(ToHost(residual, c.setup.dtype), ToHost(out, c.setup.dtype));
  }
};

// Vectors and single elements, warps and blocks per row, one batch of accesses and several. Odd
// sizes must not touch the next row, which Check verifies in the padding and in every row.
TEST_F(NormCudaTest, EveryHiddenSizeIsInItsInterval) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {1,   7,    8,    31,   64,   100,  128,  255,  256,  264,
                                 768, 1000, 1023, 1024, 1600, 2880, 4096, 8192, 9001, 16384}) {
      // The last padding aligns every row, whether or not the row's end is aligned.
      for (const int64_t pad : {int64_t{0}, int64_t{8}, int64_t{3}, 8 - hidden % 8}) {
        for (const NormSetup& form : kForms) {
          NormSetup setup = form;
          setup.dtype = dtype;
          setup.tokens = 5;
          setup.hidden = hidden;
          setup.pad = pad;
          EXPECT_TRUE(RunAndCheck(NormCase(setup)))
              << Name(form.kind) << ", " << Name(dtype) << ", hidden " << hidden << ", add "
              << form.add << ", pad " << pad;
        }
      }
    }
  }
}

TEST_F(NormCudaTest, ManyRows) {
  for (const NormSetup& form : kForms) {
    for (const int64_t hidden : {64, 128, 768, 1024, 1032, 2048, 2056, 4096}) {
      for (const int64_t tokens : {511, 513, 2050}) {
        NormSetup setup = form;
        setup.tokens = tokens;
        setup.hidden = hidden;
        setup.pad = 8;
        EXPECT_TRUE(RunAndCheck(NormCase(setup)))
            << Name(form.kind) << ", " << tokens << " x " << hidden << ", add " << form.add;
      }
    }
  }
}

TEST_F(NormCudaTest, MoreRowsThanAGridDimensionOfYHolds) {
  for (const NormKind kind : kKinds) {
    EXPECT_TRUE(RunAndCheck(NormCase({.kind = kind, .tokens = 300'001, .hidden = 16})));
  }
}

// The last row starts beyond 2^31 elements, and beyond 4 GiB.
TEST_F(NormCudaTest, RowOffsetsExceed32Bits) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  constexpr int64_t kHidden = 1024;
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < (size_t{10} << 30)) GTEST_SKIP() << "less than 10 GiB of device memory free";
  const NormCase c({.tokens = 2, .hidden = kHidden});
  const DeviceBuffer wide(2 * (kStride + kHidden));
  const DeviceWeights weights(c);
  const DeviceBuffer out = ToDevice(c.NewOut());
  for (int64_t t = 0; t < 2; ++t) {
    ASSERT_EQ(cudaMemcpy(wide.as<char>() + 2 * t * kStride,
                         static_cast<const char*>(c.x.data()) + 2 * t * kHidden, 2 * kHidden,
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  NormParams params = weights.Params(c, wide.data(), nullptr, out.data());
  params.x_stride = kStride;
  Launch(params, {});
  EXPECT_TRUE(c.Check(c.NewOut(), ToHost(out, DType::kBf16)));
}

// Here mean(x^2) - mean^2 would have no correct digits left.
TEST_F(NormCudaTest, MeanFarFromZeroKeepsTheVariance) {
  for (const double offset : {-300.0, 1000.0}) {
    EXPECT_TRUE(RunAndCheck(NormCase({.kind = NormKind::kLayer,
                                      .dtype = DType::kF16,
                                      .tokens = 3,
                                      .hidden = 768,
                                      .offset = offset})));
    EXPECT_TRUE(RunAndCheck(
        NormCase({.kind = NormKind::kLayer, .tokens = 3, .hidden = 1001, .offset = offset})));
  }
}

TEST_F(NormCudaTest, Fp16SumsMayExceedFp16) {
  for (const NormKind kind : kKinds) {
    NormCase c({.kind = kind, .dtype = DType::kF16, .tokens = 2, .hidden = 512});
    for (int64_t i = 0; i < 2 * 512; ++i) c.x.Set(i, i % 3 == 0 ? 60000.0 : -25000.0);
    for (int64_t i = 0; i < 512; ++i) c.weight.Set(i, 1 + i % 5);
    EXPECT_TRUE(RunAndCheck(c)) << Name(kind);
  }
}

TEST_F(NormCudaTest, OutMayBeX) {
  for (const NormKind kind : kKinds) {
    for (const int64_t hidden : {128, 1000, 1001, 16384}) {
      const NormCase c({.kind = kind, .tokens = 4, .hidden = hidden});
      const DeviceBuffer x = ToDevice(c.x);
      const DeviceWeights weights(c);
      Launch(weights.Params(c, x.data(), nullptr, x.data()), {});
      EXPECT_TRUE(c.Check(c.NewOut(), ToHost(x, DType::kBf16))) << Name(kind) << ", " << hidden;
    }
  }
}

TEST_F(NormCudaTest, ResidualOutMayBeXOrAdd) {
  for (const int64_t hidden : {1000, 1001, 16384}) {
    const NormCase c({.tokens = 4, .hidden = hidden, .add = true});
    const DeviceWeights weights(c);
    for (const bool is_x : {false, true}) {
      const DeviceBuffer x = ToDevice(c.x), add = ToDevice(c.add), out = ToDevice(c.NewOut());
      const DeviceBuffer& residual = is_x ? x : add;
      NormParams params = weights.Params(c, x.data(), residual.data(), out.data());
      params.add = add.data();
      Launch(params, {});
      EXPECT_TRUE(c.Check(ToHost(residual, DType::kBf16), ToHost(out, DType::kBf16)))
          << hidden << ", residual_out is " << (is_x ? "x" : "add");
    }
  }
}

// Reveals a dependent launch that reads too early.
TEST_F(NormCudaTest, DependentChainEqualsPlainChain) {
  for (const NormKind kind : kKinds) {
    const NormCase c({.kind = kind, .tokens = 64, .hidden = 2048});
    const DeviceWeights weights(c);
    const auto chain = [&](bool dependent) {
      const DeviceBuffer ping = ToDevice(c.x), pong = ToDevice(c.x);
      for (int layer = 0; layer < 40; ++layer) {
        const bool even = layer % 2 == 0;
        Launch(weights.Params(c, even ? ping.data() : pong.data(), nullptr,
                              even ? pong.data() : ping.data()),
               {.dependent = dependent});
      }
      return ToHost(ping, DType::kBf16);
    };
    const HostTensor plain = chain(false);
    for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(chain(true) == plain) << Name(kind);
  }
}

TEST_F(NormCudaTest, F32IsRefused) {
  EXPECT_THROW(Launch(NormParams{.dtype = DType::kF32, .hidden_size = 8}, {}), InvalidArgument);
}

TEST_F(NormCudaTest, NoTokensLaunchNothing) {
  EXPECT_NO_THROW(Launch(NormParams{.hidden_size = 8}, {}));
}

}  // namespace
}  // namespace tokline
