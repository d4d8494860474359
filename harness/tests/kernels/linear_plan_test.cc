// Which variant of linear runs, and that every plan fits its device.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "harness/tests/kernels/devices.h"
#include "harness/tests/message_of.h"
#include "kernels/common/rounding.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear_plan.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::MessageOf;

constexpr DeviceFacts kLargeDevice = testing::kH200;
// A device without wgmma: what the skinny kernel's ranges say.
constexpr DeviceFacts kA100{.sm_count = 108, .compute_major = 8, .code_architecture = 80};

TEST(LinearTest, VariantGoesByTokensWeightBytesAndSharedMemory) {
  LinearParams params{.in_features = 1024};
  const auto chosen = [&params] { return ChooseLinearVariant(params, kA100); };
  for (const FewTokensRange& range : kSkinnyRanges) {
    const int64_t row_bytes = params.in_features * SizeOf(params.dtype);
    params.num_tokens = range.tokens;
    params.out_features = range.weight_bytes / row_bytes;
    EXPECT_EQ(chosen(), LinearVariant::kSkinny) << range.tokens;
    params.norm_weight = reinterpret_cast<const void*>(0x1000);
    EXPECT_EQ(chosen(), range.tokens < kNormApartTokens ? LinearVariant::kSkinny
                                                        : LinearVariant::kNormThenSkinny)
        << range.tokens;
    params.norm_weight = nullptr;
    params.num_tokens += 1;
    EXPECT_EQ(chosen(), LinearVariant::kMatmul) << range.tokens;
    params.num_tokens -= 1;
    params.out_features += 1;
    EXPECT_EQ(chosen(), LinearVariant::kMatmul) << range.tokens;
  }
  params.out_features = 1024;
  params.norm_weight = reinterpret_cast<const void*>(0x1000);
  params.num_tokens = kNormApartTokens - 1;
  EXPECT_EQ(chosen(), LinearVariant::kSkinny);
  params.num_tokens = kNormApartTokens;
  EXPECT_EQ(chosen(), LinearVariant::kNormThenSkinny);
  params.norm_weight = nullptr;
  params.num_tokens = 16;
  params.in_features = 16384;
  EXPECT_EQ(chosen(), LinearVariant::kMatmul);
  params.num_tokens = 1;
  EXPECT_EQ(chosen(), LinearVariant::kSkinny);
  params.variant = LinearVariant::kMatmul;
  EXPECT_EQ(chosen(), LinearVariant::kMatmul);
}

TEST(LinearTest, WgmmaRunsInItsRangesWhereTheCodeAndTheShapeAllowIt) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    for (const FewTokensRange& range : kWgmmaRanges) {
      // With many tokens, kTile takes weights with no more columns than rows, whatever they append.
      const KvAppendParams append{.layout = {.head_dim = 128}};
      const int64_t columns = range.tokens < kTileWideTokens ? 1024 : 4096;
      LinearParams params{.num_tokens = range.tokens, .in_features = columns, .append = &append};
      params.out_features = range.weight_bytes / (params.in_features * SizeOf(params.dtype));
      const bool hopper = device.facts.HasHopperCode();
      const auto runs = [&] {
        return ChooseLinearVariant(params, device.facts) == LinearVariant::kWgmma;
      };
      EXPECT_EQ(runs(), hopper) << device.name << " with code for "
                                << device.facts.code_architecture;
      for (const int64_t in : {1000, 192, 65'600}) {  // not whole panels of 64, too few, too many
        params.in_features = in;
        EXPECT_FALSE(runs()) << device.name << ", in_features " << in;
      }
      params.in_features = columns;
      params.out_features += 1;
      if (range.tokens == std::ranges::max(kWgmmaRanges, {}, &FewTokensRange::tokens).tokens) {
        EXPECT_FALSE(runs()) << device.name << " with code for " << device.facts.code_architecture;
        params.out_features -= 1;
        params.num_tokens += 1;
        EXPECT_FALSE(runs()) << device.name << " with code for " << device.facts.code_architecture;
        params.num_tokens -= 1;
        params.gated_silu = true;
        EXPECT_FALSE(runs()) << device.name << " with code for " << device.facts.code_architecture;
      }
      if (columns > 1024) {
        params.gated_silu = false;
        params.in_features = params.out_features;
        EXPECT_EQ(ChooseLinearVariant(params, device.facts) == LinearVariant::kTile, hopper);
      }
      params.variant = LinearVariant::kWgmma;
      params.num_tokens = 1;
      if (hopper) {
        EXPECT_EQ(PlanLinear(params, device.facts).variant, LinearVariant::kWgmma);
      } else {
        EXPECT_THAT(MessageOf([&] { PlanLinear(params, device.facts); }),
                    HasSubstr("code for sm_90a"));
      }
    }
  }
}

TEST(LinearTest, TileRunsInItsRangesWhereTheCodeAndTheShapeAllowIt) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    const auto variant = [&](int64_t tokens, int64_t megabytes, bool gated, int64_t in = 1024) {
      LinearParams params{.gated_silu = gated, .num_tokens = tokens, .in_features = in};
      params.out_features =
          (megabytes << 20) / (in * SizeOf(params.dtype) * (gated ? 2 : 1)) / 8 * 8;
      return ChooseLinearVariant(params, device.facts);
    };
    const auto tile = device.facts.HasHopperCode() ? LinearVariant::kTile : LinearVariant::kMatmul;
    SCOPED_TRACE(device.name);
    EXPECT_EQ(variant(9, 140, false), tile);
    EXPECT_EQ(variant(16, 300, true), tile);
    EXPECT_EQ(variant(17, 65, false), tile);
    EXPECT_EQ(variant(17, 65, true), tile);
    EXPECT_NE(variant(32, 12, true), LinearVariant::kTile);
    EXPECT_EQ(variant(33, 12, true), tile);
    EXPECT_NE(variant(64, 12, false, 4096), LinearVariant::kTile);
    EXPECT_NE(variant(32, 12, false), LinearVariant::kTile);
    EXPECT_EQ(variant(33, 12, false), tile);
    EXPECT_EQ(variant(33, 8, false, 2048), tile);  // as many rows as columns
    EXPECT_NE(variant(33, 7, false, 2048), LinearVariant::kTile);
    EXPECT_EQ(variant(65, 12, false), tile);
    EXPECT_EQ(variant(kLargestTokenTile, 199, false), tile);
    EXPECT_EQ(variant(kLargestTokenTile, 1000, true), tile);
    EXPECT_EQ(variant(kLargestTokenTile, 201, false), LinearVariant::kMatmul);
    for (const int64_t tokens : {int64_t{kLargestTokenTile + 1}, kMaxTileTokens}) {
      EXPECT_EQ(variant(tokens, 8, false), tile);
      EXPECT_EQ(variant(tokens, 16, true), tile);
      EXPECT_EQ(variant(tokens, 9, false), LinearVariant::kMatmul);
      EXPECT_EQ(variant(tokens, 17, true), LinearVariant::kMatmul);
      EXPECT_EQ(variant(tokens, 8, false, 2048), LinearVariant::kMatmul);  // 2,048 rows
      EXPECT_EQ(variant(tokens, 6, false, 3072), tile);
    }
    EXPECT_EQ(variant(kMaxTileTokens + 1, 4, true), LinearVariant::kMatmul);
    for (const int64_t in : {1000, 192, 65'600}) {
      EXPECT_EQ(variant(100, 12, false, in), LinearVariant::kMatmul) << in;
    }
  }
}

// No choice of a decoder changes by accident: a change comes with decoder records of these models.
// Down of Qwen3-0.6B once followed what had been measured of Qwen3-4B, and lost 15 %.
TEST(LinearTest, ProjectionsOfDecodersTakeTheirVariants) {
  struct Model {
    const char* name;
    int64_t hidden, q, kv, mlp;
    const char *qkv, *o, *gate_up, *down;  // a letter for each number of tokens below
  };
  float squares = 0;
  for (const Model& model : {
           Model{"Qwen3-0.6B", 1024, 2048, 1024, 3072,  //
                 "wwwwwtttt", "wwwwwwwtt", "wwwwwtttt", "wwwwwwwtt"},
           Model{"Qwen2.5-0.5B", 896, 896, 128, 4864,  //
                 "wwwwwtttt", "wwwwwtttt", "wwwwwtttm", "wwwwwwwtm"},
           Model{"Llama-3.2-1B", 2048, 2048, 512, 8192,  //
                 "wwwwwtttm", "wwwwwtttm", "wwwwwtttm", "wwwwwtttm"},
           Model{"Qwen3-4B", 2560, 4096, 1024, 9728,  //
                 "wwwwwtttm", "tttwwtttm", "ttttttttm", "tttwwtttm"},
       }) {
    const auto variants = [&squares](LinearParams params) {
      std::string letters;
      for (const int64_t tokens : {3, 8, 16, 24, 32, 48, 64, 128, 256}) {
        params.num_tokens = tokens;
        params.out_squares = nullptr;
        params.out_squares = params.residual != nullptr && LinearLeavesSquares(params, kLargeDevice)
                                 ? &squares
                                 : nullptr;
        letters += Name(ChooseLinearVariant(params, kLargeDevice))[0];
      }
      return letters;
    };
    const auto* const residual = reinterpret_cast<const void*>(0x1000);
    const auto& [name, hidden, q, kv, mlp, qkv, o, gate_up, down] = model;
    EXPECT_EQ(variants({.in_features = hidden, .out_features = q + 2 * kv}), qkv) << name;
    EXPECT_EQ(variants({.in_features = q, .out_features = hidden, .residual = residual}), o)
        << name;
    EXPECT_EQ(variants({.gated_silu = true, .in_features = hidden, .out_features = mlp}), gate_up)
        << name;
    EXPECT_EQ(variants({.in_features = mlp, .out_features = hidden, .residual = residual}), down)
        << name;
  }
}

// Shapes of which an H200 took one variant clearly faster (results/h200/sweep.jsonl, seed 1212).
TEST(LinearTest, FewTokensOfLargeWeightsTakeTheFasterOfTwoVariants) {
  struct Measured {
    int64_t tokens, in, out;
    LinearVariant faster;
  };
  LinearParams params;
  for (const Measured& row :
       {Measured{5, 4096, 4096, LinearVariant::kTile},  // 10.2, 14.0 us
        {8, 2048, 4096, LinearVariant::kTile},          // 6.3, 9.9: clusters wait for room
        {3, 11008, 4096, LinearVariant::kTile},         // 23.1, 28.5
        {7, 12288, 12288, LinearVariant::kTile},        // 72.3, 86.3
        {16, 11008, 4096, LinearVariant::kTile},        // the most tokens
        {24, 8192, 2048, LinearVariant::kWgmma},        // too many
        {2, 2048, 3072, LinearVariant::kWgmma},         // 6.0, 5.2
        {6, 7168, 7168, LinearVariant::kWgmma},         // 26.5, 25.8
        {2, 2048, 2048, LinearVariant::kWgmma}}) {      // 4.7, 3.2
    params.num_tokens = row.tokens;
    params.in_features = row.in;
    params.out_features = row.out;
    EXPECT_EQ(ChooseLinearVariant(params, kLargeDevice), row.faster) << row.tokens << " " << row.in;
    if (row.tokens > kMaxSquaresTokens) continue;
    // Only kWgmma leaves and takes sums of squares.
    LinearParams leaves = params, takes = params;
    leaves.out_squares = reinterpret_cast<float*>(0x1000);
    takes.x_squares = reinterpret_cast<const float*>(0x1000);
    EXPECT_EQ(ChooseLinearVariant(leaves, kLargeDevice), LinearVariant::kWgmma) << row.in;
    EXPECT_EQ(ChooseLinearVariant(takes, kLargeDevice), LinearVariant::kWgmma) << row.in;
  }
  // o of Qwen3-4B, whose decoder generates more with kTile.
  params = {.num_tokens = 8, .in_features = 4096, .out_features = 2560};
  EXPECT_EQ(ChooseLinearVariant(params, kLargeDevice), LinearVariant::kWgmma);
  params.residual = reinterpret_cast<const void*>(0x1000);
  EXPECT_EQ(ChooseLinearVariant(params, kLargeDevice), LinearVariant::kTile);
  // With kTile, appending is a kernel of its own.
  const KvAppendParams append{.layout = {.num_kv_heads = 8, .page_size = 256, .head_dim = 128}};
  params = {.num_tokens = 3, .in_features = 5120, .out_features = 6144};
  EXPECT_EQ(ChooseLinearVariant(params, kLargeDevice), LinearVariant::kTile);
  params.append = &append;
  EXPECT_EQ(ChooseLinearVariant(params, kLargeDevice), LinearVariant::kWgmma);
}

// Larger weights: of down of Llama-3-70B an H200 took kTile faster (110.7, 119.4 us), and of
// Qwen3-32B with 96 tokens (67.9, 72.6), but not with 20, where its tiles leave a fifth of the SMs
// idle.
TEST(LinearTest, LargeDownProjectionsTakeTilesThatFillTheSmsOnce) {
  struct Projection {
    int64_t tokens, in, out;
    LinearVariant variant;
  };
  for (const Projection& of : {Projection{33, 28672, 8192, LinearVariant::kTile},
                               {96, 25600, 5120, LinearVariant::kTile},
                               {20, 25600, 5120, LinearVariant::kMatmul},
                               {33, 8192, 28672, LinearVariant::kMatmul},
                               {33, 65536, 65536, LinearVariant::kMatmul}}) {
    const LinearParams params{
        .num_tokens = of.tokens, .in_features = of.in, .out_features = of.out};
    EXPECT_EQ(ChooseLinearVariant(params, kLargeDevice), of.variant) << of.tokens << " " << of.in;
  }
}

TEST(LinearTest, HeadRunsWhereOutputsAreFp32AndEverySmHasATile) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    const int64_t rows = int64_t{device.facts.sm_count} * kHeadRows;
    const auto runs = [&](const std::function<void(LinearParams&)>& change) {
      LinearParams params{
          .out_f32 = true, .num_tokens = 1, .in_features = 1024, .out_features = rows};
      change(params);
      const bool chosen = ChooseLinearVariant(params, device.facts) == LinearVariant::kHead;
      EXPECT_EQ(LinearBestParts(params, device.facts) > 0, chosen);
      return chosen;
    };
    SCOPED_TRACE(device.name);
    const bool hopper = device.facts.HasHopperCode();
    EXPECT_EQ(runs([](LinearParams&) {}), hopper);
    EXPECT_EQ(runs([](LinearParams& p) { p.num_tokens = kMaxHeadTokens; }), hopper);
    EXPECT_FALSE(runs([](LinearParams& p) { p.num_tokens = kMaxHeadTokens + 1; }));
    EXPECT_FALSE(runs([](LinearParams& p) { p.out_features -= 1; }));
    EXPECT_FALSE(runs([](LinearParams& p) { p.in_features = 1000; }));
    EXPECT_FALSE(runs([](LinearParams& p) { p.out_f32 = false; }));
    EXPECT_FALSE(runs([](LinearParams& p) { p.bias = &p; }));
    EXPECT_FALSE(runs([](LinearParams& p) { p.variant = LinearVariant::kMatmul; }));
  }
}

TEST(LinearTest, HeadPlansFitAndHaveARing) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    if (!device.facts.HasHopperCode()) continue;
    for (int64_t tokens = 1; tokens <= kMaxHeadTokens; ++tokens) {
      const HeadPlan plan = PlanHead(
          {.num_tokens = tokens, .in_features = 1024, .out_features = 151'936}, device.facts);
      SCOPED_TRACE(StrCat(device.name, ", tokens ", tokens));
      EXPECT_LE(plan.shared_bytes, device.facts.shared_bytes_per_block);
      EXPECT_GE(plan.token_tile, tokens);
      EXPECT_GE(plan.stages, 4);  // weights of 64 KB are on their way while products are computed
      EXPECT_EQ(plan.k_blocks * kHeadBlockK, 1024);
      EXPECT_EQ(plan.grid, device.facts.sm_count);
    }
  }
}

TEST(LinearTest, WhatAKernelOfItsOwnFinishesCanBeSent) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    const auto sends = [&](const std::function<void(LinearParams&)>& change) {
      LinearParams params{.num_tokens = 8, .in_features = 1024, .out_features = 2560};
      change(params);
      return LinearSends(params, device.facts);
    };
    const bool hopper = device.facts.HasHopperCode();
    SCOPED_TRACE(device.name);
    for (const int64_t tokens : {1, 16, 17, 64, 65, 128}) {
      EXPECT_EQ(sends([&](LinearParams& p) { p.num_tokens = tokens; }), hopper) << tokens;
    }
    EXPECT_FALSE(sends([](LinearParams& p) { p.num_tokens = 0; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.num_tokens = kMaxSentTokens + 1; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.variant = LinearVariant::kSkinny; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.out_features = 2564; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.gated_silu = true; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.out_f32 = true; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.residual = &p; }));
    const KvAppendParams append;
    EXPECT_FALSE(sends([&](LinearParams& p) { p.append = &append; }));
  }
}

TEST(LinearTest, NoTokensHaveAPlan) {
  for (const testing::NamedDevice& device : testing::Devices()) {
    const LinearParams params{.num_tokens = 0, .in_features = 1024, .out_features = 1024};
    EXPECT_NO_THROW(PlanLinear(params, device.facts)) << device.name;
    EXPECT_EQ(TileOf(params, 64, 32, 1).tokens, 0);
  }
}

TEST(LinearTest, EveryTileFitsAndHasRoomForItsSums) {
  for (const int64_t tokens : {1, 17, 64, 65, 128, 129, 200, 256}) {
    for (const int64_t in : {256, 4096}) {
      const bool gated = in == 256;
      const LinearParams params{.gated_silu = gated,
                                .num_tokens = tokens,
                                .in_features = in,
                                .out_features = gated ? 1280 : 2560};
      const auto check = [&](int32_t token_tile, const auto& columns_of) {
        for (const int32_t columns : columns_of) {
          for (const int32_t splits : {1, 2, 4}) {
            const TilePlan plan = TileOf(params, token_tile, columns, splits);
            EXPECT_EQ(plan.Columns(), columns);
            EXPECT_LE(plan.tokens, token_tile);
            EXPECT_GE(plan.token_tiles * plan.tokens, tokens);
            EXPECT_LT(plan.token_tiles * plan.tokens, tokens + plan.token_tiles);
            EXPECT_EQ(plan.Grid(), plan.token_tiles * plan.tiles * splits);
            EXPECT_GE(plan.tiles * plan.rows, 2560);
            EXPECT_LT((plan.tiles - 1) * plan.rows, 2560);
            EXPECT_GE(plan.stages, in == 256 ? 4 / splits : 4);
            // wgmma reads token_tile rows from a stage's start, in groups of eight.
            EXPECT_GE(plan.x_rows, plan.tokens);
            EXPECT_EQ(plan.x_rows % 8, 0);
            EXPECT_GE(plan.x_rows + plan.rows, plan.token_tile);
            EXPECT_GE(plan.data_bytes, plan.stages * (plan.x_rows + plan.rows) * 128);
            const int64_t sums = plan.token_tile + (splits - 1) * DivideUp(plan.tokens, splits);
            EXPECT_GE(plan.data_bytes, sums * 4 * (plan.rows + 8));
            EXPECT_GT(plan.shared_bytes, 1024 + plan.data_bytes);
            EXPECT_LE(plan.shared_bytes, testing::kH200.shared_bytes_per_block);
          }
        }
      };
      if (tokens != 65 && tokens != 128) check(64, kTileColumns64);
      if (tokens > 64) check(128, kTileColumns128);
    }
  }
}

// Projections of published models, each of which has a plan of one wave that was measured to be the
// best or within 3 % of it.
TEST(LinearTest, TilesFillTheDeviceOnce) {
  const auto plan = [](int64_t in, int64_t out, bool gated, int64_t tokens) {
    return PlanTile(
        {.gated_silu = gated, .num_tokens = tokens, .in_features = in, .out_features = out},
        testing::kH200);
  };
  for (const int64_t tokens : {64, 128}) {
    EXPECT_EQ(plan(2560, 9728, true, tokens).Grid(), 122);  // Qwen3-4B
    EXPECT_EQ(plan(2048, 8192, true, tokens).Grid(), 128);  // Llama-3.2-1B
    EXPECT_EQ(plan(2048, 6144, true, tokens).Grid(), 128);  // Qwen3-1.7B
  }
  EXPECT_EQ(plan(3072, 1024, false, 64).Grid(), 64);  // Qwen3-0.6B
  EXPECT_EQ(plan(3072, 1024, false, 64).splits, 4);
}

// Plans that were the quickest, or within 0.3 % of it, in the decoders of Qwen3-32B, 14B, 8B and
// 4B.
TEST(LinearTest, TilesOfFewTokensAreThoseOfDecoders) {
  struct Measured {
    int64_t in, out;
    int32_t rows, splits;
  };
  for (const Measured& of : {Measured{25600, 5120, 96, 2},
                             {8192, 5120, 96, 2},
                             {12288, 4096, 64, 2},
                             {4096, 4096, 160, 4},
                             {9728, 2560, 96, 4},
                             {4096, 2560, 128, 4}}) {
    const TilePlan plan =
        PlanTile({.num_tokens = 8, .in_features = of.in, .out_features = of.out}, testing::kH200);
    EXPECT_EQ(plan.rows, of.rows) << of.in << " " << of.out;
    EXPECT_EQ(plan.splits, of.splits) << of.in << " " << of.out;
  }
  // With more tokens the time of one block's weights decides between 40 tiles and 54.
  EXPECT_EQ(PlanTile({.num_tokens = 24, .in_features = 17408, .out_features = 5120}, testing::kH200)
                .tiles,
            54);
}

TEST(LinearTest, WgmmaPlansFitWithTheLargestNormWeight) {
  const float norm = 1;
  for (const int64_t out : {64, 20'000}) {
    const WgmmaPlan plan = PlanWgmma({.gated_silu = true,
                                      .num_tokens = 8,
                                      .in_features = kMaxWgmmaFeatures,
                                      .out_features = out,
                                      .norm_weight = &norm,
                                      .x_squares = &norm},
                                     testing::kH200);
    EXPECT_LE(plan.shared_bytes, testing::kH200.shared_bytes_per_block) << out;
    EXPECT_GE(plan.norm_bytes, kMaxWgmmaFeatures / plan.splits * 2);
  }
}

TEST(LinearTest, WgmmaPlansFitAndShareKWhateverTheTokens) {
  const DeviceFacts& device = testing::kH200;
  for (const bool gated : {false, true}) {
    for (const int64_t in : {256, 320, 1024, 2048, 2560, 9728, 16384}) {
      for (const int64_t out : {8, 136, 1024, 3072, 9728, 151936}) {
        int32_t splits[2] = {};  // of the products in registers, and by wgmma
        for (int64_t tokens = 1; tokens <= kMaxWgmmaTokens; ++tokens) {
          const WgmmaPlan plan = PlanWgmma(
              {.gated_silu = gated, .num_tokens = tokens, .in_features = in, .out_features = out},
              device);
          EXPECT_GE(plan.token_tile, tokens);
          EXPECT_LE(plan.shared_bytes, device.shared_bytes_per_block);
          EXPECT_LE(2 * (plan.shared_bytes + 1024), device.shared_bytes_per_sm) << tokens;
          EXPECT_LE(plan.splits, gated ? 4 : 8);
          EXPECT_GE(plan.k_units, 2 * plan.splits);  // two copies per block at least
          EXPECT_GE(int64_t{plan.k_units} * kWgmmaSplitK, in);
          EXPECT_LE(plan.x_stages, plan.weight_stages + WgmmaHeldBlocks(plan.token_tile));
          EXPECT_GE(plan.x_stages, 2);
          // Sums for the blocks of the cluster lie where the rings were.
          EXPECT_GE(plan.shared_bytes - plan.partials_bytes, plan.partials_bytes / plan.splits);
          EXPECT_EQ(plan.grid % plan.cluster, 0);
          int32_t& known = splits[tokens > kWgmmaRegisterTokens];
          if (known == 0) known = plan.splits;
          EXPECT_EQ(plan.splits, known) << tokens;
          EXPECT_EQ(plan.grid % plan.splits, 0);
          EXPECT_GE(plan.grid / plan.splits * kWgmmaRows, out * (gated ? 2 : 1));
        }
      }
    }
  }
}

TEST(LinearTest, WorkspaceHoldsCublasNormalisedRowsAndGateUp) {
  LinearParams params{.num_tokens = 3, .in_features = 24, .out_features = 40};
  const int64_t base = Matmul::kWorkspaceBytes;
  EXPECT_EQ(LinearWorkspaceBytes(params), base);
  params.norm_weight = &params;
  EXPECT_EQ(LinearWorkspaceBytes(params), base + 256);  // 3 * 24 * 2 = 144
  params.gated_silu = true;
  EXPECT_EQ(LinearWorkspaceBytes(params), base + 256 + 512);  // 3 * 80 * 2 = 480
  const LinearScratch scratch = LinearScratchOf(params);
  EXPECT_EQ(scratch.normalised_bytes_at, base);
  EXPECT_EQ(scratch.gate_up_bytes_at, base + 256);
}

// Every vector of every weight row is visited exactly once by the kernel's own index arithmetic.
TEST(LinearTest, PlanCoversEveryWeightOnce) {
  for (const int64_t in : {8, 40, 1000, 1024, 3072, 9728}) {
    for (const int64_t out : {1, 9, 64, 1032}) {
      for (const bool gated : {false, true}) {
        if (gated && out % 8 != 0) continue;
        const LinearParams params{
            .gated_silu = gated, .num_tokens = 1, .in_features = in, .out_features = out};
        const SkinnyPlan plan = PlanSkinny(params, kLargeDevice);
        const int64_t units = in / 8, blocks = (units + 3) / 4;
        const int64_t per_split = (blocks + plan.splits - 1) / plan.splits;
        const int64_t rows = gated ? 2 * out : out;
        std::vector<int> count(rows * units, 0);
        for (int64_t tile = 0; tile < plan.tiles; ++tile) {
          for (int64_t warp = 0; warp < plan.splits * plan.groups; ++warp) {
            const int64_t group = warp / plan.splits, split = warp % plan.splits;
            const bool up = gated && group >= plan.groups / 2;
            const int64_t in_tile = (up ? group - plan.groups / 2 : group) * 8;
            for (int64_t lane = 0; lane < 32; ++lane) {
              const int64_t row = (tile << plan.tile_columns_log2) + in_tile + lane / 4;
              if (row >= out) continue;
              const int64_t end = std::min((split + 1) * per_split, blocks);
              for (int64_t b = split * per_split; b < end; ++b) {
                const int64_t unit = b * 4 + lane % 4;
                if (unit < units) ++count[(row + (up ? out : 0)) * units + unit];
              }
            }
          }
        }
        EXPECT_EQ(std::count(count.begin(), count.end(), 1), rows * units)
            << "in " << in << ", out " << out << ", gated " << gated;
      }
    }
  }
}

TEST(LinearTest, EveryPlanFitsItsDeviceOrIsRefused) {
  int too_large = 0;
  for (const testing::NamedDevice& device : testing::Devices()) {
    // The assumed number of resident threads per SM, at 80 registers per thread.
    EXPECT_LE(kSkinnyResidentThreads, device.threads_per_sm);
    EXPECT_LE(kSkinnyResidentThreads * 80, device.registers_per_sm);
    for (const int64_t in : {64, 1024, 4096, 9728, 16384}) {
      for (const int64_t out : {64, 3072}) {
        for (const int64_t tokens : {1, 2, 8, 16, 64, 128}) {
          for (const bool gated : {false, true}) {
            LinearParams params{
                .gated_silu = gated, .num_tokens = tokens, .in_features = in, .out_features = out};
            params.norm_weight = &params;
            const LinearChoice choice = PlanLinear(params, device.facts);
            SCOPED_TRACE(StrCat(::testing::PrintToString(device), ", tokens ", tokens, ", in ", in,
                                ", out ", out));
            if (choice.variant != LinearVariant::kMatmul) {
              EXPECT_LE(std::max({choice.skinny.shared_bytes, choice.wgmma.shared_bytes,
                                  choice.tile.shared_bytes, choice.head.shared_bytes}),
                        device.facts.shared_bytes_per_block);
              continue;
            }
            params.variant = LinearVariant::kSkinny;
            if (!SkinnyFits(params)) continue;
            const int64_t needed = PlanSkinny(params, device.facts).shared_bytes;
            if (needed <= device.facts.shared_bytes_per_block) continue;
            ++too_large;
            EXPECT_EQ(MessageOf([&] { PlanLinear(params, device.facts); }),
                      StrCat("kSkinny with num_tokens ", tokens, " and in_features ", in, " needs ",
                             needed, " B of shared memory a block; this device has ",
                             device.facts.shared_bytes_per_block));
          }
        }
      }
    }
  }
  EXPECT_GT(too_large, 0);
}

TEST(LinearTest, PlanKeepsTheKernelsLimits) {
  for (const int32_t sm_count : {20, 108, 132, 160}) {
    DeviceFacts device = kLargeDevice;
    device.sm_count = sm_count;
    for (const int64_t in : {8, 256, 1024, 2048, 3072, 4096, 9728, 16384}) {
      for (const int64_t out : {8, 1024, 4096, 6144, 151936}) {
        for (const bool gated : {false, true}) {
          int32_t splits = 0;
          for (int64_t tokens = 1; tokens <= kMaxSkinnyTokens; ++tokens) {
            LinearParams params{
                .gated_silu = gated, .num_tokens = tokens, .in_features = in, .out_features = out};
            params.norm_weight = &params;
            if (!SkinnyFits(params)) continue;
            const SkinnyPlan plan = PlanSkinny(params, device);
            SCOPED_TRACE(StrCat("tokens ", tokens, ", in ", in, ", out ", out, ", SMs ", sm_count));
            EXPECT_LE(plan.Threads(), 32 * kSkinnyMaxWarps);
            EXPECT_LE(tokens << plan.tile_columns_log2, plan.Threads());  // one element per thread
            EXPECT_LE(plan.shared_bytes, kSkinnySharedBytes);
            EXPECT_EQ(plan.groups * 8, (gated ? 2 : 1) << plan.tile_columns_log2);
            EXPECT_GE(int64_t{plan.tiles} << plan.tile_columns_log2, out);
            EXPECT_LT(int64_t{plan.tiles - 1} << plan.tile_columns_log2, out);
            EXPECT_GE(plan.grid, 1);
            EXPECT_LE(plan.grid, plan.tiles);
            EXPECT_EQ(plan.pitch_units % 8, 4);
            EXPECT_GE(plan.pitch_units, (in + 31) / 32 * 4);
            if (splits == 0) splits = plan.splits;
            EXPECT_EQ(plan.splits, splits) << "splits must not depend on the tokens";
          }
        }
      }
    }
  }
}

TEST(LinearTest, PlanFillsAnSmWithWholeBlocksAndTheDeviceOnce) {
  constexpr int32_t kResidentWarps = kSkinnyResidentThreads / 32;
  struct Expected {
    int64_t in = 0, out = 0;
    bool gated = false;
    int32_t splits = 0;
  };
  for (const Expected& e : {Expected{1024, 4096, false, 4}, Expected{1024, 3072, true, 4},
                            Expected{2048, 1024, false, 8}, Expected{3072, 1024, false, 12},
                            Expected{4096, 2560, false, 8}, Expected{8192, 2048, false, 12},
                            Expected{1536, 1536, false, 6}}) {
    for (const int64_t tokens : {1, 4, 16}) {
      const LinearParams params{
          .gated_silu = e.gated, .num_tokens = tokens, .in_features = e.in, .out_features = e.out};
      const SkinnyPlan plan = PlanSkinny(params, kLargeDevice);
      SCOPED_TRACE(StrCat("in ", e.in, ", out ", e.out, ", tokens ", tokens));
      EXPECT_EQ(plan.splits, e.splits);
      EXPECT_EQ(kResidentWarps % (plan.splits * plan.groups), 0);
      const int64_t warps = int64_t{plan.grid} * plan.splits * plan.groups;
      EXPECT_LE(warps, int64_t{kLargeDevice.sm_count} * kResidentWarps);
    }
  }
}

}  // namespace
}  // namespace tokline
