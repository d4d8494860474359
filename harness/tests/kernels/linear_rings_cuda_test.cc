// Linear's kernels for sm_90a alone: rings that wrap, shares that differ, tiles that are not full.
#include <utility>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/linear_case.h"
#include "harness/tests/kernels/linear_cuda_case.h"
#include "kernels/device/current_device.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/tile.h"

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

// Long enough for several uses of every stage, in shares that are not equal, with a last tile of
// few rows.
TEST_F(LinearHopperCudaTest, WgmmaRingsWrapAndSharesDiffer) {
  for (const int64_t tokens : {1, 8, 9, 16, 17, 32, 33, 64}) {
    for (const int64_t in : {256, 320, 2624, 9728}) {
      const LinearCase c({.tokens = tokens, .in = in, .out = 200, .bias = true, .integers = true});
      EXPECT_TRUE(RunOnDevice(c, LinearVariant::kWgmma) == Reference(c))
          << "tokens " << tokens << ", in " << in;
    }
  }
}

// Outputs that are no multiples of eight, or not aligned, are stored one by one.
TEST_F(LinearHopperCudaTest, HopperKernelsStoreWhatVectorsDoNotFit) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t tokens : {17, 40, 64, 100}) {
      for (const int64_t out : {1, 7, 137, 200}) {
        for (const LinearSetup& form :
             {LinearSetup{}, LinearSetup{.residual = true}, LinearSetup{.out_f32 = true}}) {
          LinearSetup setup = form;
          setup.dtype = dtype;
          setup.tokens = tokens;
          setup.in = 256;
          setup.out = out;
          setup.integers = true;
          const LinearCase c(setup);
          const HostTensor expected = Reference(c);
          for (const LinearVariant variant : {LinearVariant::kWgmma, LinearVariant::kTile}) {
            if (tokens > MaxTokens(variant)) continue;
            EXPECT_TRUE(RunOnDevice(c, variant) == expected)
                << Name(variant) << ", " << Name(dtype) << ", tokens " << tokens << ", out " << out
                << ", residual " << form.residual << ", out_f32 " << form.out_f32;
          }
        }
      }
    }
  }
}

// Splits of 4, shares that are not equal, and a last tile of few rows.
TEST_F(LinearHopperCudaTest, WgmmaGatedTilesArePartialAndSplit) {
  for (const int64_t tokens : {1, 16, 17, 64}) {
    for (const int64_t in : {1024, 2624}) {
      for (const int64_t out : {8, 136, 200}) {
        const LinearCase c({.tokens = tokens, .in = in, .out = out, .gated = true, .bias = true});
        EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kWgmma)))
            << "tokens " << tokens << ", in " << in << ", out " << out;
      }
    }
  }
}

// K that ends within a stage, shares that are not equal, rings that wrap, a last tile of few rows,
// and blocks that finish no token.
TEST_F(LinearHopperCudaTest, WgmmaUnevenSharesAreBitwiseExact) {
  for (const int64_t tokens : {17, 31, 33, 63, 64}) {
    for (const int64_t in : {768, 832, 896}) {
      for (const int64_t out : {128, 200, 1000}) {
        const LinearCase c(
            {.tokens = tokens, .in = in, .out = out, .bias = true, .integers = true});
        EXPECT_TRUE(RunOnDevice(c, LinearVariant::kWgmma) == Reference(c))
            << "tokens " << tokens << ", in " << in << ", out " << out;
      }
      for (const int64_t out : {40, 104, 232}) {
        const LinearCase c({.tokens = tokens, .in = in, .out = out, .gated = true, .bias = true});
        EXPECT_TRUE(c.Check(RunOnDevice(c, LinearVariant::kWgmma)))
            << "tokens " << tokens << ", in " << in << ", gated out " << out;
      }
    }
    const LinearCase c({.tokens = tokens, .in = 2624, .out = 4096, .integers = true});
    EXPECT_TRUE(RunOnDevice(c, LinearVariant::kWgmma) == Reference(c)) << "tokens " << tokens;
  }
}

// So many tiles that each block's rings have two stages.
TEST_F(LinearHopperCudaTest, WgmmaRingsOfLargeGridsWrap) {
  for (const int64_t tokens : {1, 16, 17, 64}) {
    const LinearCase c({.tokens = tokens, .in = 1024, .out = 17'000, .integers = true});
    EXPECT_TRUE(RunOnDevice(c, LinearVariant::kWgmma) == Reference(c)) << tokens;
  }
}

// Rings that wrap and that do not, shares that are not equal, a last tile of few rows, and outputs
// that are no multiples of eight.
TEST_F(LinearHopperCudaTest, EveryTileAndSplitIsBitwiseExact) {
  const auto check = [](const LinearCase& c, int32_t token_tile, const auto& columns_of,
                        const auto& is_right) {
    DeviceCase device(c, LinearVariant::kTile);
    for (const int32_t columns : columns_of) {
      for (const int32_t splits : {1, 2, 4}) {
        const TilePlan plan = TileOf(device.params, token_tile, columns, splits);
        if (plan.k_blocks < splits) continue;
        LaunchTile(device.params, plan, {});
        EXPECT_TRUE(is_right(device.Result()))
            << "tokens " << device.params.num_tokens << ", in " << device.params.in_features
            << ", out " << device.params.out_features << ", columns " << columns << ", splits "
            << splits;
        device.Poison();
      }
    }
  };
  const auto check_all = [&](const LinearCase& c, int64_t tokens, const auto& is_right) {
    if (tokens != 65 && tokens != 128) check(c, 64, kTileColumns64, is_right);
    if (tokens > 64) check(c, 128, kTileColumns128, is_right);
  };
  // Two or three tiles of 131 tokens share one, and four of 222 two.
  for (const int64_t tokens : {1, 33, 64, 65, 128, 131, 222, 256}) {
    for (const int64_t in : {256, 320, 1600}) {
      if (tokens > 128 && in != 320) continue;
      for (const auto& [dtype, out] : {std::pair(DType::kBf16, 200), std::pair(DType::kBf16, 357),
                                       std::pair(DType::kF16, 200)}) {
        const LinearCase c({.dtype = dtype,
                            .tokens = tokens,
                            .in = in,
                            .out = out,
                            .bias = true,
                            .integers = true});
        const HostTensor expected = Reference(c);
        check_all(c, tokens, [&](const HostTensor& result) { return result == expected; });
      }
      const LinearCase gated({.tokens = tokens, .in = in, .out = 232, .gated = true, .bias = true});
      check_all(gated, tokens, [&](const HostTensor& out) { return bool{gated.Check(out)}; });
    }
  }
}

// The smallest problems in which all rings wrap. The sanitizer's slow tools run these instead of
// the tests above.
void CheckSmallestWgmmaRings(int64_t tokens) {
  for (LinearSetup setup : {LinearSetup{.bias = true}, LinearSetup{.gated = true},
                            LinearSetup{.norm = true, .residual = true}}) {
    setup.tokens = tokens;
    setup.in = 6144;
    setup.out = setup.gated ? 40 : 72;
    const LinearCase c(setup);
    DeviceCase device(c, LinearVariant::kWgmma);
    const WgmmaPlan plan = PlanWgmma(device.params, QueryDeviceFacts());
    EXPECT_GT(plan.k_units / plan.splits, plan.weight_stages);
    EXPECT_TRUE(c.Check(device.Run())) << tokens << " tokens";
  }
}
TEST_F(LinearHopperCudaTest, SmallestRingsOf8Tokens) { CheckSmallestWgmmaRings(8); }
TEST_F(LinearHopperCudaTest, SmallestRingsOf16Tokens) { CheckSmallestWgmmaRings(16); }
TEST_F(LinearHopperCudaTest, SmallestRingsOf32Tokens) { CheckSmallestWgmmaRings(32); }
TEST_F(LinearHopperCudaTest, SmallestRingsOf64Tokens) { CheckSmallestWgmmaRings(64); }

TEST_F(LinearHopperCudaTest, SmallestRingsOfTiles) {
  // With 8 tokens a stage has 8 rows of x, and the rows behind them are weights.
  for (const auto& [tokens, in] : {std::pair{8, 5888}, std::pair{64, 3584}, std::pair{65, 3584},
                                   std::pair{128, 3584}, std::pair{131, 3584}}) {
    const LinearCase c({.tokens = tokens, .in = in, .out = 72, .bias = true});
    DeviceCase device(c, LinearVariant::kTile);
    for (const int32_t splits : {1, 2, 4}) {
      const TilePlan plan = TileOf(device.params, tokens <= 64 ? 64 : 128, 32, splits);
      EXPECT_GT(plan.k_blocks / splits, plan.stages);
      LaunchTile(device.params, plan, {});
      EXPECT_TRUE(c.Check(device.Result())) << tokens << " tokens, " << splits << " splits";
      device.Poison();
    }
  }
}

}  // namespace
}  // namespace tokline
