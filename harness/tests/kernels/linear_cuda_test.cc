// Linear on the device: against exact results, against itself with other tokens, and in chains.
#include <numeric>
#include <span>
#include <vector>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/linear_case.h"
#include "harness/tests/kernels/linear_cuda_case.h"
#include "kernels/activation/activation.h"
#include "kernels/common/error.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::LinearCase;
using DeviceCase = testing::LinearDeviceCase;
using testing::LinearHopperCudaTest;
using testing::LinearSetup;
using testing::MaxTokens;
using testing::Reference;
using testing::RunOnDevice;
using testing::ToDevice;
using testing::ToHost;

constexpr LinearVariant kVariants[] = {LinearVariant::kSkinny, LinearVariant::kWgmma,
                                       LinearVariant::kTile, LinearVariant::kMatmul};
constexpr LinearVariant kVariantsWithNorm[] = {
    LinearVariant::kSkinny, LinearVariant::kNormThenSkinny, LinearVariant::kWgmma,
    LinearVariant::kTile, LinearVariant::kMatmul};

std::span<const LinearVariant> VariantsOf(const LinearSetup& setup) {
  if (setup.norm) return kVariantsWithNorm;
  return kVariants;
}

class LinearCudaTest : public testing::CudaTest {};

TEST_F(LinearCudaTest, EveryTokenCountIsWithinItsBound) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (int64_t tokens = 1; tokens <= 18; ++tokens) {
      const LinearCase c({.dtype = dtype,
                          .tokens = tokens,
                          .in = 1024,
                          .out = 264,
                          .norm = true,
                          .bias = true,
                          .pad = 8,
                          .seed = static_cast<uint64_t>(tokens)});
      EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kAuto)))
          << tokens << " tokens, " << Name(dtype);
    }
  }
}

TEST_F(LinearCudaTest, EveryFormOfEveryVariantIsWithinItsBound) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const LinearSetup& form :
         {LinearSetup{}, LinearSetup{.norm = true}, LinearSetup{.gated = true},
          LinearSetup{.norm = true, .gated = true}, LinearSetup{.gated = true, .bias = true},
          LinearSetup{.residual = true}, LinearSetup{.bias = true, .residual = true},
          LinearSetup{.norm = true, .out_f32 = true}}) {
      for (const int64_t tokens : {1, 7, 16, 33, 100}) {
        LinearSetup setup = form;
        setup.dtype = dtype;
        setup.tokens = tokens;
        setup.in = 768;
        setup.out = 512;
        setup.pad = 16;
        const LinearCase c(setup);
        for (const LinearVariant variant : VariantsOf(setup)) {
          if (tokens > MaxTokens(variant)) continue;
          EXPECT_TRUE(c.Check(RunOnDevice(c, variant)))
              << Name(variant) << ", " << Name(dtype) << ", tokens " << tokens << ", norm "
              << form.norm << ", gated " << form.gated << ", bias " << form.bias << ", residual "
              << form.residual << ", out_f32 " << form.out_f32;
        }
      }
    }
  }
}

TEST_F(LinearCudaTest, ManyTokensAreWithinTheirBound) {
  for (const int64_t tokens : {33, 100}) {
    const LinearCase c({.tokens = tokens, .in = 256, .out = 384, .norm = true, .gated = true});
    EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kAuto))) << tokens;
  }
}

TEST_F(LinearCudaTest, IntegersAreBitwiseExact) {
  for (const LinearVariant variant : kVariants) {
    for (const int64_t tokens : {1, 8, 9, 16}) {
      for (const int64_t in : {8, 24, 32, 40, 136, 1000, 2048}) {
        if (tokens > MaxTokens(variant)) continue;
        if (NeedsHopperCode(variant) && in % 256 != 0) continue;
        const LinearCase c(
            {.tokens = tokens, .in = in, .out = 200, .bias = true, .integers = true, .pad = 8});
        // The sums are exact in fp32, so that a single rounding remains.
        EXPECT_TRUE(RunOnDevice(c, variant) == Reference(c))
            << Name(variant) << ", tokens " << tokens << ", in " << in;
      }
    }
  }
}

TEST_F(LinearCudaTest, OwnKernelsRoundBeforeTheyAddTheResidual) {
  for (const LinearVariant variant :
       {LinearVariant::kSkinny, LinearVariant::kWgmma, LinearVariant::kTile}) {
    for (const int64_t tokens : {1, 5, 16, 64, 100}) {
      if (tokens > MaxTokens(variant)) continue;
      const LinearCase c(
          {.tokens = tokens, .in = 4096, .out = 136, .residual = true, .integers = true});
      EXPECT_TRUE(RunOnDevice(c, variant) == Reference(c)) << Name(variant) << " " << tokens;
    }
  }
}

TEST_F(LinearCudaTest, OddOutFeatures) {
  for (const LinearVariant variant : kVariants) {
    if (!testing::HasCodeFor(variant)) continue;
    for (const int64_t out : {1, 7, 9, 137}) {
      const LinearCase c({.tokens = 3, .in = 256, .out = out, .integers = true});
      EXPECT_TRUE(RunOnDevice(c, variant) == Reference(c)) << Name(variant) << ", out " << out;
    }
  }
}

// More than 65,535 tiles, enough for blocks to take several each (as in the LM head).
TEST_F(LinearCudaTest, MoreTilesThanAGridDimensionOfYHolds) {
  for (const int64_t tokens : {1, 16}) {
    const LinearCase c(
        {.tokens = tokens, .in = 40, .out = 1'100'003, .out_f32 = true, .integers = true});
    EXPECT_TRUE(RunOnDevice(c, LinearVariant::kSkinny) == Reference(c)) << tokens;
  }
}

TEST_F(LinearCudaTest, LongRowsNeedMoreThan48KbOfSharedMemory) {
  for (const int64_t tokens : {1, 2, 3}) {
    const LinearCase c({.tokens = tokens, .in = 16384, .out = 40, .norm = true, .residual = true});
    EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kSkinny))) << tokens;
  }
  // This fits into no block, so kAuto must take the other variant.
  const LinearCase c({.tokens = 16, .in = 16384, .out = 40, .norm = true});
  EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kAuto)));
}

// With an identity weight the output is the normalised activation itself.
TEST_F(LinearCudaTest, RoundsTheNormalisedActivationBeforeTheNormWeight) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const LinearVariant variant : kVariantsWithNorm) {
      if (!testing::HasCodeFor(variant)) continue;
      LinearCase c({.dtype = dtype, .tokens = 8, .in = 512, .out = 512, .norm = true});
      for (int64_t k = 0; k < 512; ++k) {
        c.norm_weight.Set(k, 96.5);
        for (int64_t row = 0; row < 512; ++row) c.weight.Set(row * 512 + k, row == k ? 1 : 0);
      }
      const HostTensor out = RunOnDevice(c, variant);
      const HostTensor expected = Reference(c);
      int64_t equal = 0, undecided = 0;
      for (int64_t t = 0; t < 8; ++t) {
        const testing::Normalised n = c.ActivationsOf(t);
        for (int64_t k = 0; k < 512; ++k) {
          const int64_t at = t * 512 + k;
          if (n.slack[k] != 0) {
            ++undecided;
          } else if (out[at] == expected[at]) {
            ++equal;
          }
        }
      }
      EXPECT_EQ(equal + undecided, 8 * 512) << Name(variant) << ", " << Name(dtype);
      EXPECT_LT(undecided, 41);  // 1 %
    }
  }
}

TEST_F(LinearCudaTest, Fp16SumOfSquaresMayExceedFp16) {
  LinearCase c({.dtype = DType::kF16, .tokens = 2, .in = 1024, .out = 64, .norm = true});
  for (int64_t i = 0; i < 2 * 1024; ++i) c.x.Set(i, i % 2 == 0 ? 30000.0 : -20000.0);
  EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kSkinny)));
}

// cuBLASLt may choose another algorithm for another address, so the two results may differ in the
// last bit; each is checked against the bound.
TEST_F(LinearCudaTest, ResidualMayBeOut) {
  for (const auto& [variant, tokens] :
       {std::pair(LinearVariant::kSkinny, 6), std::pair(LinearVariant::kWgmma, 6),
        std::pair(LinearVariant::kWgmma, 33), std::pair(LinearVariant::kTile, 33),
        std::pair(LinearVariant::kTile, 131), std::pair(LinearVariant::kTile, 193),
        std::pair(LinearVariant::kMatmul, 6)}) {
    if (tokens > MaxTokens(variant)) continue;
    const LinearCase c({.tokens = tokens, .in = 512, .out = 320, .residual = true, .pad = 8});
    DeviceCase apart(c, variant), in_place(c, variant);
    in_place.params.out = const_cast<void*>(in_place.params.residual);
    const HostTensor in_place_out = in_place.Run(), apart_out = apart.Run();
    EXPECT_TRUE(c.Check(in_place_out)) << Name(variant);
    EXPECT_TRUE(c.Check(apart_out)) << Name(variant);
    EXPECT_TRUE(variant == LinearVariant::kMatmul || in_place_out == apart_out);
  }
}

// From less than one line to many lines per block, and not always a multiple of 16.
TEST_F(LinearCudaTest, AskingForLaterWeightsChangesNoBit) {
  const LinearCase c({.tokens = 3, .in = 512, .out = 320, .norm = true, .residual = true});
  const HostTensor expected = RunOnDevice(c, LinearVariant::kSkinny);
  for (const int64_t bytes : {0, 16, 100, 4096, 1'000'003}) {
    const DeviceBuffer later(bytes + 1);
    DeviceCase device(c, LinearVariant::kSkinny);
    device.params.prefetch = later.data();
    device.params.prefetch_bytes = bytes;
    EXPECT_TRUE(device.Run() == expected) << bytes;
  }
}

TEST_F(LinearCudaTest, ResidualMayHaveItsOwnStride) {
  for (const LinearVariant variant : kVariants) {
    if (!testing::HasCodeFor(variant)) continue;
    const LinearCase c({.tokens = 6, .in = 512, .out = 320, .residual = true});
    const HostTensor expected = RunOnDevice(c, variant);
    constexpr int64_t kStride = 352;
    HostTensor wide(DType::kBf16, 6 * kStride);
    wide.FillNan();
    for (int64_t i = 0; i < 6 * 320; ++i) wide.Set(i / 320 * kStride + i % 320, c.residual[i]);
    const DeviceBuffer wide_on_device = ToDevice(wide);
    DeviceCase device(c, variant);
    device.params.residual = wide_on_device.data();
    device.params.residual_stride = kStride;
    EXPECT_TRUE(device.Run() == expected) << Name(variant);
  }
}

// A token's result has the same bits whichever tokens run beside it.
TEST_F(LinearCudaTest, ResultsOfOwnKernelsDoNotDependOnTheOtherTokens) {
  const auto check = [](LinearVariant variant, bool gated, int64_t all_tokens,
                        std::initializer_list<int64_t> fewer) {
    if (!testing::HasCodeFor(variant)) return;
    const LinearCase c(
        {.tokens = all_tokens, .in = 1024, .out = 2048, .norm = true, .gated = gated});
    const HostTensor all = RunOnDevice(c, variant);
    DeviceCase device(c, variant);
    for (const int64_t tokens : fewer) {
      device.params.num_tokens = tokens;
      const HostTensor some = device.Run();
      for (int64_t i = 0; i < tokens * 2048; ++i) {
        ASSERT_EQ(some[i], all[i])
            << Name(variant) << ", " << tokens << " tokens, element " << i << ", gated " << gated;
      }
    }
  };
  for (const bool gated : {false, true}) {
    for (const LinearVariant variant : {LinearVariant::kSkinny, LinearVariant::kWgmma}) {
      check(variant, gated, 16, {1, 2, 3, 4, 5, 8, 9, 13});
    }
    check(LinearVariant::kWgmma, gated, 64, {17, 32, 33, 63});
    check(LinearVariant::kTile, gated, 16, {1, 8, 15});
    check(LinearVariant::kTile, gated, 64, {17, 33, 63});
    check(LinearVariant::kTile, gated, 128, {65, 100, 127});
    check(LinearVariant::kTile, gated, 192, {129, 150, 191});
    check(LinearVariant::kTile, gated, 256, {193, 222, 255});
  }
}

TEST_F(LinearCudaTest, GatedSiluEqualsProjectionThenActivation) {
  const LinearCase c({.tokens = 4, .in = 1024, .out = 640, .gated = true});
  DeviceCase fused(c, LinearVariant::kSkinny), plain(c, LinearVariant::kSkinny);
  DeviceBuffer gate_up(4 * 1280 * 2);
  LinearParams projection = plain.params;
  projection.gated_silu = false;
  projection.out_features = 1280;
  projection.out = gate_up.data();
  projection.out_stride = 1280;
  Launch(projection, {});
  Launch(ActivationParams{.num_tokens = 4,
                          .intermediate_size = 640,
                          .x = gate_up.data(),
                          .x_stride = 1280,
                          .out = plain.params.out,
                          .out_stride = plain.params.out_stride},
         {});
  const DeviceBuffer bytes(int64_t{4} * 640 * 2);
  ASSERT_EQ(cudaMemcpy(bytes.data(), plain.params.out, bytes.bytes(), cudaMemcpyDeviceToDevice),
            cudaSuccess);
  const HostTensor expected = ToHost(bytes, DType::kBf16), actual = fused.Run();
  for (int64_t i = 0; i < 4 * 640; ++i) ASSERT_EQ(actual[i], expected[i]) << i;
}

// Integers make the statistic exact, so that both kernels find the same scale.
TEST_F(LinearCudaTest, FusedNormEqualsRmsNormThenProjection) {
  const LinearCase c({.tokens = 7, .in = 1024, .out = 128, .norm = true, .integers = true});
  DeviceCase fused(c, LinearVariant::kSkinny), plain(c, LinearVariant::kSkinny);
  const DeviceBuffer normalised(int64_t{7} * 1024 * 2);
  Launch(NormParams{.num_tokens = 7,
                    .hidden_size = 1024,
                    .eps = plain.params.norm_eps,
                    .x = plain.params.x,
                    .x_stride = plain.params.x_stride,
                    .weight = plain.params.norm_weight,
                    .out = normalised.data(),
                    .out_stride = 1024},
         {});
  plain.params.norm_weight = nullptr;
  plain.params.x = normalised.data();
  plain.params.x_stride = 1024;
  const HostTensor expected = plain.Run();
  EXPECT_TRUE(fused.Run() == expected);
  EXPECT_TRUE(RunOnDevice(c, LinearVariant::kNormThenSkinny) == expected);
}

// Sums of squares of each 64 elements of a row of `x`, each spread over kLinearSquares values.
std::vector<float> SquaresOf(const HostTensor& x, int64_t tokens, int64_t width, int64_t stride) {
  const int64_t count = (width + 63) / 64 * kLinearSquares;
  std::vector<float> squares(tokens * count);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const double value = x[t * stride + i];
      squares[t * count + i / 64 * kLinearSquares + i % kLinearSquares] +=
          static_cast<float>(value * value);
    }
  }
  return squares;
}

TEST_F(LinearHopperCudaTest, WgmmaNormalisesBySumsOfSquares) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const bool gated : {false, true}) {
      for (const int64_t tokens : {1, 7, 8, 9, 16}) {
        // K of whole and of partial units, shares that wrap the rings and that do not.
        for (const int64_t in : {320, 1024, 4096}) {
          const LinearCase c({.dtype = dtype,
                              .tokens = tokens,
                              .in = in,
                              .out = 136,
                              .norm = true,
                              .gated = gated,
                              .pad = 8});
          DeviceCase device(c, LinearVariant::kWgmma);
          const DeviceBuffer squares(SquaresOf(c.x, tokens, in, c.XStride()));
          device.params.x_squares = squares.as<float>();
          device.params.workspace = nullptr;  // nothing else normalises
          EXPECT_TRUE(c.Check(device.Run()))
              << tokens << " tokens, in " << in << ", gated " << gated << ", " << Name(dtype);
        }
      }
    }
  }
}

// gate_up and down of an MLP whose grid is large: stages are filled again before x exists.
TEST_F(LinearHopperCudaTest, LargeGatedGridsNormaliseAndChain) {
  for (const int64_t tokens : {1, 8, 13}) {
    const LinearCase up({.tokens = tokens, .in = 2560, .out = 9728, .norm = true, .gated = true});
    const LinearCase down({.tokens = tokens, .in = 9728, .out = 2560, .residual = true});
    const std::vector<float> sums = SquaresOf(up.x, tokens, 2560, up.XStride());
    const DeviceBuffer squares(sums), next_squares(std::vector<float>(sums.size(), NAN));
    DeviceCase first(up, LinearVariant::kWgmma), second(down, LinearVariant::kWgmma);
    first.params.x_squares = squares.as<float>();
    first.params.workspace = nullptr;  // nothing else normalises
    EXPECT_TRUE(up.Check(first.Run())) << tokens;
    const auto run = [&](bool dependent) {
      const DeviceBuffer x = ToDevice(up.x);
      for (int round = 0; round < 4; ++round) {
        LinearParams params = first.params;
        params.x = x.data();
        if (round > 0) params.x_squares = next_squares.as<float>();
        Launch(params, {.dependent = dependent});
        LinearParams back = second.params;
        back.x = params.out;
        back.x_stride = params.out_stride;
        back.residual = back.out = x.data();
        back.residual_stride = back.out_stride = params.x_stride;
        back.out_squares = next_squares.as<float>();
        Launch(back, {.dependent = dependent});
      }
      return ToHost(x, DType::kBf16);
    };
    const HostTensor plain = run(false);
    EXPECT_FALSE(plain == up.x);
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(run(true) == plain) << tokens;
  }
}

TEST_F(LinearHopperCudaTest, SumsOfSquaresAreThoseOfTheOutput) {
  for (const int64_t tokens : {1, 2, 5, 8, 9, 16}) {
    for (const int64_t out : {64, 136, 1000}) {
      const LinearCase c({.tokens = tokens, .in = 1024, .out = out, .residual = true, .pad = 8});
      DeviceCase device(c, LinearVariant::kWgmma);
      const int64_t count = (out + 63) / 64 * kLinearSquares;
      const DeviceBuffer squares(std::vector<float>(tokens * count, NAN));
      device.params.out_squares = squares.as<float>();
      const HostTensor result = device.Run();
      const std::vector<float> expected = SquaresOf(result, tokens, out, c.OutStride());
      std::vector<float> actual(expected.size());
      ASSERT_EQ(cudaMemcpy(actual.data(), squares.data(), squares.bytes(), cudaMemcpyDefault),
                cudaSuccess);
      for (size_t i = 0; i < actual.size(); i += kLinearSquares) {
        const auto total = [i](const std::vector<float>& sums) {
          return std::accumulate(&sums[i], &sums[i] + kLinearSquares, 0.0);
        };
        ASSERT_NEAR(total(actual), total(expected), 0x1p-18 * total(expected))
            << tokens << " tokens, out " << out << ", sums " << i;
      }
    }
  }
}

// Each layer reads what the previous one wrote, which reveals a dependent launch that reads too
// early.
TEST_F(LinearCudaTest, DependentChainEqualsPlainChain) {
  const auto chain = [](const LinearCase& c, int layers, LinearVariant variant, bool dependent,
                        bool by_squares = false) {
    DeviceCase device(c, variant);
    DeviceBuffer ping = ToDevice(c.x), pong = ToDevice(c.x);
    const std::vector<float> first =
        SquaresOf(c.x, device.params.num_tokens, device.params.in_features, c.XStride());
    const DeviceBuffer squares[] = {DeviceBuffer(first), DeviceBuffer(first)};
    LinearParams params = device.params;
    for (int layer = 0; layer < layers; ++layer) {
      params.x = layer % 2 == 0 ? ping.data() : pong.data();
      params.residual = params.x;
      params.residual_stride = params.x_stride;
      params.out = layer % 2 == 0 ? pong.data() : ping.data();
      if (by_squares) {
        params.x_squares = squares[layer % 2].as<float>();
        params.out_squares = squares[(layer + 1) % 2].as<float>();
      }
      Launch(params, {.dependent = dependent});
    }
    return ToHost(ping, DType::kBf16);
  };
  const LinearCase c({.tokens = 4, .in = 1024, .out = 1024, .norm = true, .residual = true});
  for (const LinearVariant variant :
       {LinearVariant::kSkinny, LinearVariant::kNormThenSkinny, LinearVariant::kWgmma}) {
    if (!testing::HasCodeFor(variant)) continue;
    const HostTensor plain = chain(c, 40, variant, false);
    EXPECT_FALSE(plain == c.x);
    for (int repeat = 0; repeat < 5; ++repeat) {
      EXPECT_TRUE(chain(c, 40, variant, true) == plain) << Name(variant);
    }
  }
  // Weights that do not fit the ring.
  for (const int64_t tokens : {4, 16, 33, 64, 128}) {
    for (const int64_t width : {1024, 1536, 4096}) {
      const LinearCase wide({.tokens = tokens, .in = width, .out = width, .residual = true});
      for (const LinearVariant variant : {LinearVariant::kWgmma, LinearVariant::kTile}) {
        if (tokens > MaxTokens(variant)) continue;
        const HostTensor plain = chain(wide, 10, variant, false);
        EXPECT_FALSE(plain == wide.x);
        for (int repeat = 0; repeat < 5; ++repeat) {
          EXPECT_TRUE(chain(wide, 10, variant, true) == plain)
              << Name(variant) << ", tokens " << tokens << ", width " << width;
        }
      }
    }
  }
  if (!testing::HasCodeFor(LinearVariant::kWgmma)) return;
  const HostTensor by_squares = chain(c, 40, LinearVariant::kWgmma, false, true);
  EXPECT_FALSE(by_squares == c.x);
  for (int repeat = 0; repeat < 5; ++repeat) {
    EXPECT_TRUE(chain(c, 40, LinearVariant::kWgmma, true, true) == by_squares);
  }
}

TEST_F(LinearCudaTest, MatmulBetweenDependentKernels) {
  const LinearCase c({.tokens = 24, .in = 1024, .out = 1024, .norm = true, .gated = true});
  DeviceCase plain(c, LinearVariant::kMatmul), dependent(c, LinearVariant::kMatmul);
  const HostTensor expected = plain.Run();
  for (int repeat = 0; repeat < 5; ++repeat) Launch(dependent.params, {.dependent = true});
  EXPECT_TRUE(dependent.Run() == expected);
}

TEST_F(LinearCudaTest, RefusesWhatItLacks) {
  const LinearCase c({.tokens = 2});
  DeviceCase device(c, LinearVariant::kMatmul);
  device.params.matmul = nullptr;
  EXPECT_THROW(Launch(device.params, {}), InvalidArgument);
  device.params.variant = LinearVariant::kNormThenSkinny;  // without a norm
  EXPECT_THROW(Launch(device.params, {}), InvalidArgument);
  device.params.variant = LinearVariant::kSkinny;
  EXPECT_NO_THROW(Launch(device.params, {}));
  device.params.num_tokens = 17;
  EXPECT_THROW(Launch(device.params, {}), InvalidArgument);
  device.params.num_tokens = 0;
  EXPECT_NO_THROW(Launch(device.params, {}));
  device.params.variant = LinearVariant::kAuto;
  EXPECT_NO_THROW(Launch(device.params, {}));
}

}  // namespace
}  // namespace tokline
