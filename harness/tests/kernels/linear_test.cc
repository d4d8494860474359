// Linear without a device: validation, cost, plan, fragment layout, and the reference.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "harness/tests/kernels/devices.h"
#include "harness/tests/kernels/linear_case.h"
#include "harness/tests/message_of.h"
#include "kernels/common/error.h"
#include "kernels/common/peer_buffers.h"
#include "kernels/common/rounding.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear_policy.h"
#include "reference/linear.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::LinearCase;
using testing::LinearSetup;
using testing::MessageOf;

constexpr DeviceFacts kLargeDevice = testing::kH200;

// The message with which Validate rejects a valid problem of 2 tokens after one field has changed.
std::string RefusalOf(const std::function<void(LinearParams&)>& change) {
  const LinearCase c({.tokens = 2, .bias = true, .residual = true});
  HostTensor out = c.NewOut();
  LinearParams params = c.Params(out.data());
  Validate(params);
  change(params);
  return MessageOf([&] { Validate(params); });
}

TEST(LinearTest, ValidateStatesWhatIsWrong) {
  using P = LinearParams;
  EXPECT_THAT(RefusalOf([](P& p) { p.num_tokens = -1; }), HasSubstr("num_tokens is -1"));
  EXPECT_THAT(RefusalOf([](P& p) { p.in_features = 12; }),
              HasSubstr("in_features is 12; it must be a multiple of 8"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_features = 0; }), HasSubstr("out_features is 0"));
  EXPECT_THAT(RefusalOf([](P& p) { p.gated_silu = true; }),
              HasSubstr("gated_silu and residual exclude each other"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.residual = nullptr;
                p.gated_silu = true;
                p.out_features = 60;
              }),
              HasSubstr("out_features is 60; with gated_silu"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_f32 = true; }), HasSubstr("out_f32 goes neither"));
  PeerBuffers peers{.world_size = 2, .bytes = 1 << 20};
  for (void*& buffer : peers.buffers) buffer = reinterpret_cast<void*>(0x1000);
  EXPECT_THAT(RefusalOf([&](P& p) { p.send = &peers; }), HasSubstr("send goes with none of"));
  const auto refused_send = [&](const std::function<void(PeerBuffers&)>& change) {
    PeerBuffers changed = peers;
    change(changed);
    return RefusalOf([&](P& p) {
      p.residual = nullptr;
      p.send = &changed;
    });
  };
  EXPECT_EQ(refused_send([](PeerBuffers&) {}), "nothing was thrown");
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.world_size = 1; }),
              HasSubstr("rank 0 of 1; there must be 2 to 8 ranks"));
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.bytes = 512; }), HasSubstr("it has 128"));
  EXPECT_THAT(refused_send([](PeerBuffers& b) { b.buffers[1] = nullptr; }),
              HasSubstr("buffers[1] of send is"));
  EXPECT_THAT(RefusalOf([&](P& p) {
                p.residual = nullptr;
                p.out_features = 60;
                p.send = &peers;
              }),
              HasSubstr("a multiple of 8; it is 60"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.norm_weight = p.weight;
                p.norm_eps = -1;
              }),
              HasSubstr("norm_eps is -1"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kSkinny;
                p.num_tokens = 17;
              }),
              HasSubstr("num_tokens is 17; kSkinny takes at most 16"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kWgmma;
                p.num_tokens = 65;
              }),
              HasSubstr("num_tokens is 65; kWgmma takes at most 64"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kTile;
                p.num_tokens = 129;
              }),
              HasSubstr("num_tokens is 129; kTile takes at most 128"));
  EXPECT_THAT(RefusalOf([](P& p) { p.variant = LinearVariant::kNormThenSkinny; }),
              HasSubstr("kNormThenSkinny needs a norm_weight"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.variant = LinearVariant::kSkinny;
                p.num_tokens = 16;
                p.in_features = p.x_stride = 16384;
              }),
              HasSubstr("needs more than the 163840 B of shared memory"));
  EXPECT_THAT(RefusalOf([](P& p) { p.prefetch_bytes = 16; }),
              HasSubstr("with 16 bytes; it must be 16 B aligned, or null with 0 bytes"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.prefetch = static_cast<const char*>(p.weight) + 8;
                p.prefetch_bytes = 16;
              }),
              HasSubstr("it must be 16 B aligned"));
  EXPECT_THAT(RefusalOf([](P& p) { p.weight = nullptr; }), HasSubstr("must not be null"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x = static_cast<const char*>(p.x) + 2; }),
              HasSubstr("it must be 16 B aligned"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out = const_cast<void*>(p.x); }),
              HasSubstr("must not overlap"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_stride = 68; }), HasSubstr("x_stride is 68"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_stride = 56; }), HasSubstr("x_stride is 56"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_stride = 63; }), HasSubstr("out_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) { p.residual_stride = 63; }), HasSubstr("residual_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.residual = p.out;
                p.residual_stride = 72;
              }),
              HasSubstr("residual is out, but residual_stride is 72 and out_stride is 64"));
}

TEST(LinearTest, ValidateLaunchStatesWhatCudaLacks) {
  const LinearCase c({.tokens = 40});
  HostTensor out = c.NewOut();
  LinearParams params = c.Params(out.data());
  const auto refusal = [&] {
    return MessageOf([&] { ValidateLaunch(params, LinearVariant::kMatmul); });
  };
  EXPECT_THAT(refusal(), HasSubstr("matmul is null; kMatmul (num_tokens 40) needs one"));
  params.matmul = reinterpret_cast<Matmul*>(out.data());
  params.workspace = reinterpret_cast<void*>(0x1010);
  EXPECT_THAT(refusal(), HasSubstr("kMatmul needs one, 256 B aligned"));
  EXPECT_THAT(MessageOf([&] { ValidateLaunch(params, LinearVariant::kNormThenSkinny); }),
              HasSubstr("kNormThenSkinny needs one, 256 B aligned"));
  params.workspace = reinterpret_cast<void*>(0x1000);
  params.workspace_bytes = LinearWorkspaceBytes(params) - 1;
  EXPECT_THAT(refusal(),
              HasSubstr(StrCat("LinearWorkspaceBytes asks for ", LinearWorkspaceBytes(params))));
  params.workspace_bytes += 1;
  EXPECT_EQ(refusal(), "nothing was thrown");
  const PeerBuffers peers{.world_size = 2};
  params.send = &peers;
  EXPECT_THAT(refusal(), HasSubstr("send with kMatmul; kWgmma and kTile alone send"));
  params.send = nullptr;
  params.dtype = DType::kF32;
  EXPECT_THAT(refusal(), HasSubstr("dtype is f32"));
}

TEST(LinearTest, CostMatchesBruteForceCount) {
  for (const LinearSetup& setup :
       {LinearSetup{.tokens = 3, .in = 16, .out = 5},
        LinearSetup{.tokens = 2, .in = 8, .out = 16, .norm = true, .gated = true, .bias = true},
        LinearSetup{.tokens = 1, .in = 24, .out = 7, .bias = true, .residual = true},
        LinearSetup{.dtype = DType::kF32, .tokens = 2, .in = 8, .out = 3, .out_f32 = true}}) {
    const LinearCase c(setup);
    HostTensor out = c.NewOut();
    double reads = 0, writes = 0, flops = 0;
    const double element = SizeOf(setup.dtype);
    for (int64_t row = 0; row < c.Rows(); ++row) {
      for (int64_t k = 0; k < setup.in; ++k) {
        reads += element;
        flops += 2.0 * setup.tokens;
      }
      if (setup.bias) {
        reads += element;
        flops += setup.tokens;
      }
    }
    for (int64_t t = 0; t < setup.tokens; ++t) {
      for (int64_t k = 0; k < setup.in; ++k) {
        reads += element;
        if (setup.norm) flops += 4;
        if (setup.norm && t == 0) reads += element;
      }
      for (int64_t i = 0; i < setup.out; ++i) {
        writes += SizeOf(c.OutType());
        if (setup.gated) flops += 4;
        if (setup.residual) {
          reads += element;
          flops += 1;
        }
      }
    }
    const Cost cost = CostOf(c.Params(out.data()));
    EXPECT_EQ(cost.read_bytes, reads);
    EXPECT_EQ(cost.write_bytes, writes);
    EXPECT_EQ(cost.flops, flops);
  }
  EXPECT_EQ(CostOf(LinearParams{.in_features = 8, .out_features = 8}).Bytes(), 0);
}

// A device without wgmma: what the skinny kernel's ranges say.
constexpr DeviceFacts kA100{.sm_count = 108, .compute_major = 8, .code_architecture = 80};

TEST(LinearTest, PolicyGoesByTokensWeightBytesAndSharedMemory) {
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
      // Of the widest ones with many tokens, kWgmma takes those that append.
      const KvAppendParams append{.layout = {.head_dim = 128}};
      LinearParams params{.num_tokens = range.tokens, .in_features = 1024, .append = &append};
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
      params.in_features = 1024;
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
    EXPECT_EQ(variant(kMaxTileTokens, 199, false), tile);
    EXPECT_EQ(variant(kMaxTileTokens, 1000, true), tile);
    EXPECT_EQ(variant(kMaxTileTokens, 201, false), LinearVariant::kMatmul);
    EXPECT_EQ(variant(kMaxTileTokens + 1, 12, true), LinearVariant::kMatmul);
    for (const int64_t in : {1000, 192, 65'600}) {
      EXPECT_EQ(variant(100, 12, false, in), LinearVariant::kMatmul) << in;
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
    EXPECT_FALSE(sends([](LinearParams& p) { p.num_tokens = 129; }));  // kMatmul
    EXPECT_FALSE(sends([](LinearParams& p) { p.variant = LinearVariant::kSkinny; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.out_features = 2564; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.gated_silu = true; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.out_f32 = true; }));
    EXPECT_FALSE(sends([](LinearParams& p) { p.residual = &p; }));
    const KvAppendParams append;
    EXPECT_FALSE(sends([&](LinearParams& p) { p.append = &append; }));
  }
}

TEST(LinearTest, EveryTileFitsAndHasRoomForItsSums) {
  for (const int64_t tokens : {1, 64, 65, 128}) {
    for (const int64_t in : {256, 4096}) {
      const bool gated = in == 256;
      const LinearParams params{.gated_silu = gated,
                                .num_tokens = tokens,
                                .in_features = in,
                                .out_features = gated ? 1280 : 2560};
      const auto check = [&](const auto& columns_of) {
        for (const int32_t columns : columns_of) {
          for (const int32_t splits : {1, 2, 4}) {
            const TilePlan plan = TileOf(params, columns, splits);
            EXPECT_EQ(plan.Columns(), columns);
            EXPECT_EQ(plan.token_tile, tokens <= 64 ? 64 : 128);
            EXPECT_GE(plan.tiles * plan.rows, 2560);
            EXPECT_LT((plan.tiles - 1) * plan.rows, 2560);
            EXPECT_GE(plan.stages, in == 256 ? 4 / splits : 4);
            const int64_t sums = plan.token_tile + (splits - 1) * DivideUp(tokens, int64_t{splits});
            EXPECT_GE(plan.data_bytes, sums * 4 * (plan.rows + 8));
            EXPECT_GT(plan.shared_bytes, 1024 + plan.data_bytes);
            EXPECT_LE(plan.shared_bytes, testing::kH200.shared_bytes_per_block);
          }
        }
      };
      if (tokens <= 64) {
        check(kTileColumns64);
      } else {
        check(kTileColumns128);
      }
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
        for (const int64_t tokens : {1, 2, 8, 16}) {
          for (const bool gated : {false, true}) {
            LinearParams params{
                .gated_silu = gated, .num_tokens = tokens, .in_features = in, .out_features = out};
            params.norm_weight = &params;
            const LinearChoice choice = PlanLinear(params, device.facts);
            SCOPED_TRACE(StrCat(::testing::PrintToString(device), ", tokens ", tokens, ", in ", in,
                                ", out ", out));
            if (choice.variant != LinearVariant::kMatmul) {
              EXPECT_LE(std::max(choice.skinny.shared_bytes, choice.wgmma.shared_bytes),
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

// mma.sync m16n8k16 with the fragment layout of the PTX manual, on lanes' registers of two
// elements: d += a b with a [16, 16], b [16, 8].
using Pair = std::array<double, 2>;
void EmulateMma(std::array<std::array<double, 4>, 32>& d,
                const std::array<std::array<Pair, 4>, 32>& a,
                const std::array<std::array<Pair, 2>, 32>& b) {
  double a_full[16][16], b_full[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) a_full[g + r % 2 * 8][2 * t + e + r / 2 * 8] = a[lane][r][e];
    }
    for (int r = 0; r < 2; ++r) {
      for (int e = 0; e < 2; ++e) b_full[2 * t + e + 8 * r][g] = b[lane][r][e];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      for (int k = 0; k < 16; ++k) {
        d[lane][r] += a_full[g + r / 2 * 8][k] * b_full[k][2 * t + r % 2];
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

TEST(LinearTest, SixteenByteLoadsAreTwoMmaFragmentsOfPermutedK) {
  constexpr int kTokens = 16, kRows = 8, kK = 32;
  const HostTensor x = testing::IntegerTensor(DType::kF32, kTokens * kK, 1, -9, 9);
  const HostTensor w = testing::IntegerTensor(DType::kF32, kRows * kK, 2, -9, 9);
  std::array<std::array<double, 4>, 32> d{};
  for (int half = 0; half < 2; ++half) {  // words 0 and 1 of a load, then 2 and 3
    std::array<std::array<Pair, 4>, 32> a;
    std::array<std::array<Pair, 2>, 32> b;
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const auto word = [&](const HostTensor& from, int row, int index) {
        const int64_t at = row * kK + t * 8 + index * 2;
        return Pair{from[at], from[at + 1]};
      };
      a[lane] = {word(x, g, 2 * half), word(x, g + 8, 2 * half), word(x, g, 2 * half + 1),
                 word(x, g + 8, 2 * half + 1)};
      b[lane] = {word(w, g, 2 * half), word(w, g, 2 * half + 1)};
    }
    EmulateMma(d, a, b);
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int token = lane / 4 + r / 2 * 8, row = lane % 4 * 2 + r % 2;
      double expected = 0;
      for (int k = 0; k < kK; ++k) expected += x[token * kK + k] * w[row * kK + k];
      EXPECT_EQ(d[lane][r], expected);
    }
  }
}

TEST(LinearReferenceTest, EveryFormIsWithinItsBound) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const LinearSetup& form :
         {LinearSetup{}, LinearSetup{.norm = true, .bias = true}, LinearSetup{.gated = true},
          LinearSetup{.norm = true, .gated = true, .bias = true}, LinearSetup{.residual = true},
          LinearSetup{.norm = true, .out_f32 = true}}) {
      LinearSetup setup = form;
      setup.dtype = dtype;
      setup.tokens = 5;
      setup.in = 72;
      setup.out = 136;
      setup.pad = 8;
      const LinearCase c(setup);
      HostTensor out = c.NewOut();
      LinearReference(c.Params(out.data()));
      EXPECT_TRUE(c.Check(out)) << Name(dtype);
    }
  }
}

// Sums as a tensor core of Hopper makes them; see LinearCase::Project.
struct TensorCore {
  int sum_bits = 24;
  int shares = 1;          // of K, each summed by itself
  int skipped_group = -1;  // a seeded bug

  static double CutOff(double value, double unit) { return std::trunc(value / unit) * unit; }

  double Add(double sum, std::span<const double> products) const {
    double largest = std::abs(sum), total = 0;
    for (const double p : products) largest = std::max(largest, std::abs(p));
    if (largest == 0) return 0;
    const double unit = std::exp2(std::ilogb(largest) - 25);
    for (const double p : products) total += CutOff(p, unit);
    total += CutOff(sum, unit);
    return total == 0 ? 0 : CutOff(total, std::exp2(std::ilogb(total) + 1 - sum_bits));
  }

  float Project(const LinearCase& c, const testing::Normalised& n, int64_t row) const {
    const int64_t in = c.setup.in, groups = in / LinearCase::kGroup;
    std::vector<double> products(in);
    for (int64_t k = 0; k < in; ++k) products[k] = n.value[k] * c.weight[row * in + k];
    float result = 0;
    for (int share = 0; share < shares; ++share) {
      double sum = 0;
      for (int64_t g = groups * share / shares; g < groups * (share + 1) / shares; ++g) {
        if (g == skipped_group) continue;
        sum = Add(sum, std::span(products).subspan(g * LinearCase::kGroup, LinearCase::kGroup));
      }
      result += static_cast<float>(sum);
    }
    return result;
  }

  HostTensor Run(const LinearCase& c) const {
    HostTensor out = c.NewOut();
    for (int64_t t = 0; t < c.setup.tokens; ++t) {
      const testing::Normalised n = c.ActivationsOf(t);
      for (int64_t i = 0; i < c.setup.out; ++i) out.Set(t * c.OutStride() + i, Project(c, n, i));
    }
    return out;
  }
};

constexpr LinearSetup kFp32Out{
    .tokens = 100, .in = 768, .out = 512, .norm = true, .out_f32 = true, .pad = 16};

// What an H200 differed by: its cuBLASLt in one share, its kWgmma in two.
TEST(TensorCoreTest, SimulatedSumsDifferAsThoseOfAnH200) {
  struct Measured {
    DType dtype;
    int64_t index;
    int shares;
    double difference;
  };
  for (const Measured& m :
       {Measured{DType::kBf16, 12461, 1, 3.0414e-5}, Measured{DType::kBf16, 14325, 2, 1.0798e-5},
        Measured{DType::kF16, 12364, 1, 2.9922e-5}, Measured{DType::kF16, 12364, 2, 1.4664e-5}}) {
    LinearSetup setup = kFp32Out;
    setup.dtype = m.dtype;
    const LinearCase c(setup);
    const testing::Normalised n = c.ActivationsOf(m.index / setup.out);
    const int64_t row = m.index % setup.out;
    const LinearCase::Approximate exact = c.Project(n, row);
    const float actual = TensorCore{.shares = m.shares}.Project(c, n, row);
    EXPECT_NEAR(std::abs(actual - exact.value), m.difference, 2e-9) << m.index;
    EXPECT_LT(m.difference, exact.bound) << m.index;
  }
}

TEST(TensorCoreTest, SimulatedSumsAreWithinTheirBound) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t in : {32, 256, 768, 2048}) {
      LinearSetup setup = kFp32Out;
      setup.dtype = dtype;
      setup.tokens = 20;
      setup.in = in;
      const LinearCase c(setup);
      for (const int shares : {1, 2, 8}) {
        EXPECT_TRUE(c.Check(TensorCore{.shares = shares}.Run(c)))
            << Name(dtype) << ", in " << in << ", shares " << shares;
      }
    }
  }
}

TEST(TensorCoreTest, WrongSumsAreNotWithinTheirBound) {
  LinearSetup setup = kFp32Out;
  setup.tokens = 5;
  const LinearCase c(setup);
  EXPECT_TRUE(c.Check(TensorCore{}.Run(c)));
  EXPECT_FALSE(c.Check(TensorCore{.skipped_group = 47}.Run(c)));
  EXPECT_FALSE(c.Check(TensorCore{.sum_bits = 22}.Run(c)));
  LinearCase other = c;  // one of 393,216 weights is off by 1 %
  other.weight.Set(300 * setup.in + 500, 1.01 * c.weight[300 * setup.in + 500]);
  EXPECT_FALSE(c.Check(TensorCore{}.Run(other)));
}

// Where a bound has room for more than one rounding, each error of a truncation is within it.
TEST(WithinRmsTest, TruncationWithinEveryBoundIsRejected) {
  const HostTensor exact = testing::RandomTensor(DType::kF32, 1000, 1);
  HostTensor rounded(DType::kBf16, 1000), truncated(DType::kBf16, 1000);
  for (int64_t i = 0; i < 1000; ++i) {
    const double unit = 2 * testing::HalfUlp(DType::kBf16, exact[i]);
    rounded.Set(i, exact[i]);
    truncated.Set(i, std::trunc(exact[i] / unit) * unit);
  }
  const auto variance = [&](int64_t i) {
    return testing::RoundingVariance(DType::kBf16, exact[i]);
  };
  EXPECT_TRUE(testing::WithinRms(rounded, exact, 1000, variance, 1));
  const auto two_roundings = [&](int64_t i) {
    return 2 * testing::HalfUlp(DType::kBf16, exact[i]);
  };
  EXPECT_TRUE(testing::WithinBound(truncated, exact, 1000, two_roundings, 1));
  EXPECT_FALSE(testing::WithinRms(truncated, exact, 1000, variance, 1));
}

// Four roundings make the bound of a gated MLP, but they do not all go in one direction.
TEST(LinearReferenceTest, ErrorsInOneDirectionAreRejectedByTheRootMeanSquare) {
  const LinearCase c({.tokens = 16, .in = 72, .out = 136, .gated = true});
  const LinearCase::Expectation expected = c.Expect();
  HostTensor out = c.NewOut();
  for (size_t i = 0; i < expected.value.size(); ++i) {
    out.Set(static_cast<int64_t>(i), expected.value[i] + 0.6 * expected.bound[i]);
  }
  EXPECT_THAT(c.Check(out).message(), HasSubstr("root mean square"));
}

TEST(LinearReferenceTest, DroppedTailOfKInOnePercentOfTheFeaturesIsRejected) {
  const LinearCase c({.tokens = 5, .in = 1024, .out = 200, .norm = true});
  LinearCase shorter = c;
  for (const int64_t row : {17, 151}) {
    for (int64_t k = 1016; k < 1024; ++k) shorter.weight.Set(row * 1024 + k, 0);
  }
  HostTensor out = c.NewOut();
  LinearReference(shorter.Params(out.data()));
  EXPECT_FALSE(c.Check(out));
}

TEST(LinearReferenceTest, OddOutFeaturesAndManyRowBlocks) {
  const LinearCase c({.tokens = 3, .in = 8, .out = 333, .integers = true});
  HostTensor out = c.NewOut();
  LinearReference(c.Params(out.data()));
  EXPECT_TRUE(c.Check(out));
}

TEST(LinearReferenceTest, ResidualMayBeOut) {
  const LinearCase c({.tokens = 4, .in = 64, .out = 48, .residual = true, .pad = 8});
  HostTensor apart = c.NewOut(), in_place = c.residual;
  LinearReference(c.Params(apart.data()));
  LinearParams params = c.Params(in_place.data());
  params.residual = in_place.data();
  LinearReference(params);
  EXPECT_TRUE(in_place == apart);
}

// The fused predecessor had this error: it applied the norm weight to the unrounded activation.
// Unless the bound distinguishes the two, no test of the kernels would.
TEST(LinearReferenceTest, BoundCatchesANormThatIsNotRoundedBeforeItsWeight) {
  LinearCase c({.tokens = 4, .in = 64, .out = 64, .norm = true});
  for (int64_t k = 0; k < 64; ++k) {
    c.norm_weight.Set(k, 96.5);
    for (int64_t row = 0; row < 64; ++row) c.weight.Set(row * 64 + k, row == k ? 1 : 0);
  }
  HostTensor out = c.NewOut();
  LinearReference(c.Params(out.data()));
  EXPECT_TRUE(c.Check(out));
  for (int64_t t = 0; t < 4; ++t) {
    double squares = 0;
    for (int64_t k = 0; k < 64; ++k) squares += std::pow(c.x[t * 64 + k], 2);
    for (int64_t k = 0; k < 64; ++k) {
      out.Set(t * 64 + k, c.x[t * 64 + k] / std::sqrt(squares / 64 + LinearCase::kEps) * 96.5);
    }
  }
  EXPECT_FALSE(c.Check(out));
}

TEST(LinearReferenceTest, NoTokensWriteNothing) {
  LinearReference({.num_tokens = 0, .in_features = 8, .out_features = 8});
}

}  // namespace
}  // namespace tokline
