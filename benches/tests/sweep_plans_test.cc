// Plans drawn shapes with every kernel, for devices from 8.0 to 12.0: each plan fits the device and
// does all of the work, or it is refused with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "benches/paged_batch.h"
#include "benches/sweep.h"
#include "harness/tests/kernels/devices.h"
#include "kernels/all_reduce_norm/all_reduce_norm_plan.h"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/common/error.h"
#include "kernels/decode_step/decode_step_plan.h"
#include "kernels/kv_append/kv_append_plan.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/norm/norm_plan.h"
#include "kernels/paged_gather/paged_gather_plan.h"
#include "kernels/paged_prefill/paged_prefill_plan.h"
#include "kernels/sampling/sampling_plan.h"

namespace tokline::bench {
namespace {

using testing::Devices;
using testing::NamedDevice;
using Json = nlohmann::ordered_json;

constexpr uint64_t kSeeds = 1000;

// An aligned address that no plan reads.
void* const kSomewhere = reinterpret_cast<void*>(uintptr_t{4096});

// Calls `check` with one shape of each of a thousand seeds.
template <typename Check>
void ForEachShape(const std::string& kernel, const Check& check) {
  for (uint64_t seed = 0; seed < kSeeds && !::testing::Test::HasFailure(); ++seed) {
    const Sweep sweep =
        DrawSweep(kernel, 1, seed, kDeviceSweep, [](const auto&, const auto&) { return ""; });
    const Json& shape = sweep.shapes.families.begin().value()[0];
    SCOPED_TRACE(shape.dump().substr(0, 300));
    check(shape);
  }
}

PagedKvLayout LayoutOf(const Json& shape) {
  ShapeReader reader("", "", shape);
  PagedKvLayout layout = reader.Layout();
  layout.page_size = shape["pages"][0];
  return layout;
}

// One sequence of one chunk for each length. The pages are never read.
ChunkTable TableOf(const std::vector<int64_t>& lengths) {
  ChunkTable table;
  for (size_t i = 0; i < lengths.size(); ++i) {
    table.AddChunk({}, static_cast<int32_t>(lengths[i]));
    table.AddSequence(std::vector<int32_t>{static_cast<int32_t>(i)});
  }
  return table;
}

TEST(SweepPlansTest, DecodePlansReadEveryTokenOnceAndFit) {
  ForEachShape("chunk_decode", [](const Json& shape) {
    const PagedKvLayout layout = LayoutOf(shape);
    const std::vector<int64_t> lengths = shape["lens"];
    const ChunkTable table = TableOf(lengths);
    for (const NamedDevice& device : Devices()) {
      const ChunkDecodePlan plan = PlanChunkDecode(table.View(), layout, shape["hq"], device.facts);
      std::vector<std::vector<std::pair<int32_t, int32_t>>> read(lengths.size());
      for (const ChunkDecodeTask& task : plan.Tasks()) {
        ASSERT_EQ(task.member_count, 1);
        const ChunkDecodeMember& member = plan.Members()[static_cast<size_t>(task.member_begin)];
        EXPECT_LT(member.partial, plan.num_partials);
        for (int32_t r = task.range_begin; r < task.range_end; ++r) {
          const ChunkDecodeRange& range = plan.Ranges()[static_cast<size_t>(r)];
          EXPECT_EQ(range.token_begin % kChunkDecodeTileTokens, 0);
          read[static_cast<size_t>(member.seq)].emplace_back(range.token_begin, range.token_end);
        }
      }
      for (size_t seq = 0; seq < lengths.size(); ++seq) {
        std::ranges::sort(read[seq]);
        int64_t end = 0;
        for (const auto& [first, last] : read[seq]) {
          EXPECT_EQ(first, std::exchange(end, last)) << ::testing::PrintToString(device);
        }
        EXPECT_EQ(end, lengths[seq]) << ::testing::PrintToString(device);
      }
      EXPECT_LE(plan.size.grid.cluster_lanes,
                device.facts.HasClusters() ? device.facts.max_cluster_blocks : 1);
      EXPECT_LE(plan.num_partials, std::ssize(lengths) + plan.size.grid.num_lanes);
      EXPECT_LE(ChunkDecodeBlockBytes(layout.head_dim), device.facts.shared_bytes_per_block);
    }
  });
}

TEST(SweepPlansTest, PrefillPlansHaveEveryNewTokenOnce) {
  size_t shapes = 0;
  ForEachShape("paged_prefill", [&](const Json& shape) {
    const PagedKvLayout layout = LayoutOf(shape);
    const std::vector<int64_t> tokens = shape["q"], contexts = shape["kv"];
    const std::vector<int32_t> starts = PrefixSums(tokens);
    const ChunkTable table = TableOf(contexts);
    std::vector<int64_t> wanted;
    for (const int64_t count : tokens) wanted.push_back(count * layout.num_kv_heads);
    // One device per shape in turn: there may be a million tiles.
    const NamedDevice& device = Devices()[shapes++ % Devices().size()];
    SCOPED_TRACE(::testing::PrintToString(device));
    const int32_t max_parts = MaxPagedPrefillParts(device.facts);
    const PagedPrefillPlan plan = PlanPagedPrefill(table.View(), starts.data(), layout, shape["hq"],
                                                   /*causal=*/true, device.facts, max_parts);
    EXPECT_LE(std::ssize(plan.parts), max_parts);
    EXPECT_LE(std::ssize(plan.tiles),
              MaxPagedPrefillTiles(layout, shape["hq"], std::ssize(tokens), starts.back()) +
                  std::ssize(plan.parts));
    std::vector<int64_t> planned(tokens.size(), 0);
    for (int32_t block = 0; block < plan.num_blocks; ++block) {
      for (int32_t at = block; at >= 0; at = plan.tiles[static_cast<size_t>(at)].next) {
        const PagedPrefillTile& tile = plan.tiles[static_cast<size_t>(at)];
        const auto seq = static_cast<size_t>(
            std::upper_bound(starts.begin(), starts.end(), tile.q_begin) - starts.begin() - 1);
        ASSERT_LE(tile.num_tokens, plan.tile_tokens);
        ASSERT_EQ(tile.kv_end,
                  contexts[seq] - tokens[seq] + tile.q_begin - starts[seq] + tile.num_tokens);
        const bool counted = static_cast<size_t>(at) < plan.parts.size() &&
                             plan.parts[static_cast<size_t>(at)].index > 0;
        if (!counted) planned[seq] += tile.num_tokens;
      }
    }
    EXPECT_EQ(planned, wanted);
    for (const NamedDevice& any : Devices()) {
      EXPECT_LE(PagedPrefillBlockBytes(ChoosePagedPrefillVariant(any.facts), layout.head_dim),
                any.facts.shared_bytes_per_block)
          << ::testing::PrintToString(any);
    }
  });
}

void ExpectLinearFits(LinearParams params) {
  for (const NamedDevice& device : Devices()) {
    for (const LinearVariant variant :
         {LinearVariant::kAuto, LinearVariant::kSkinny, LinearVariant::kNormThenSkinny,
          LinearVariant::kWgmma, LinearVariant::kTile, LinearVariant::kHead,
          LinearVariant::kMatmul}) {
      params.variant = variant;
      SCOPED_TRACE(StrCat(Name(variant), " on ", ::testing::PrintToString(device)));
      const auto plan = [&] {
        Validate(params);
        return PlanLinear(params, device.facts);
      };
      if (!LinearRuns(params, device.facts)) {
        EXPECT_THROW(plan(), InvalidArgument);
        continue;
      }
      const LinearChoice choice = plan();
      if (choice.variant == LinearVariant::kWgmma) {
        EXPECT_LE(choice.wgmma.shared_bytes, device.facts.shared_bytes_per_block);
        EXPECT_GE(choice.wgmma.weight_stages, 1);
        EXPECT_LE(choice.wgmma.cluster, 8);
        EXPECT_EQ(choice.wgmma.grid % choice.wgmma.cluster, 0);
      } else if (choice.variant == LinearVariant::kTile) {
        EXPECT_LE(choice.tile.shared_bytes, device.facts.shared_bytes_per_block);
        EXPECT_GE(choice.tile.stages, 1);
        EXPECT_LE(choice.tile.splits, std::min(4, choice.tile.k_blocks));
        EXPECT_GE(int64_t{choice.tile.tiles} * choice.tile.rows,
                  params.out_features * (params.gated_silu ? 2 : 1));
      } else if (choice.variant == LinearVariant::kHead) {
        EXPECT_LE(choice.head.shared_bytes, device.facts.shared_bytes_per_block);
        EXPECT_GE(choice.head.stages, 2);
        EXPECT_GE(int64_t{choice.head.units} * kHeadUnit, params.out_features);
        EXPECT_LE(choice.head.grid, choice.head.units);
      } else if (choice.variant != LinearVariant::kMatmul) {
        EXPECT_LE(choice.skinny.shared_bytes, device.facts.shared_bytes_per_block);
        EXPECT_LE(choice.skinny.Threads(), 32 * kSkinnyMaxWarps);
        EXPECT_GE(int64_t{choice.skinny.tiles} << choice.skinny.tile_columns_log2,
                  params.out_features);
        EXPECT_GE(choice.skinny.grid, 1);
      }
    }
  }
}

TEST(SweepPlansTest, ProjectionsFitOrAreRefused) {
  ForEachShape("linear", [](const Json& shape) {
    const auto flag = [&](const char* key) { return shape.contains(key); };
    ExpectLinearFits({.out_f32 = flag("out_f32"),
                      .gated_silu = flag("gated"),
                      .num_tokens = shape["tokens"][0],
                      .in_features = shape["in"],
                      .out_features = shape["out"],
                      .x = kSomewhere,
                      .x_stride = shape["in"],
                      .norm_weight = flag("norm") ? kSomewhere : nullptr,
                      .weight = kSomewhere,
                      .residual = flag("residual") ? kSomewhere : nullptr,
                      .residual_stride = shape["out"],
                      .out = static_cast<char*>(kSomewhere) + 4096,
                      .out_stride = shape["out"]});
  });
}

TEST(SweepPlansTest, AppendingProjectionsFitOrAreRefused) {
  ForEachShape("rmsnorm_qkv", [](const Json& shape) {
    const int64_t hq = shape["hq"], hk = shape["hk"], head_dim = shape["head_dim"];
    const KvAppendParams append{.num_q_heads = static_cast<int32_t>(hq),
                                .layout = {.num_pages = 1,
                                           .num_kv_heads = static_cast<int32_t>(hk),
                                           .head_dim = static_cast<int32_t>(head_dim)}};
    LinearParams params{.num_tokens = shape["tokens"][0],
                        .in_features = shape["hidden"],
                        .out_features = (hq + 2 * hk) * head_dim,
                        .x = kSomewhere,
                        .x_stride = shape["hidden"],
                        .norm_weight = kSomewhere,
                        .weight = kSomewhere,
                        .out = static_cast<char*>(kSomewhere) + 4096,
                        .out_stride = (hq + 2 * hk) * head_dim};
    ExpectLinearFits(params);
    params.append = &append;
    for (const NamedDevice& device : Devices()) {
      if (!LinearAppends(params, device.facts)) continue;
      const WgmmaPlan plan = PlanLinear(params, device.facts).wgmma;
      EXPECT_LE(plan.shared_bytes, device.facts.shared_bytes_per_block);
      EXPECT_EQ(plan.grid % plan.cluster, 0);
      EXPECT_EQ(plan.cluster / plan.splits, head_dim / kWgmmaRows);
    }
  });
}

TEST(SweepPlansTest, NormPlansHaveEveryRow) {
  ForEachShape("norm", [](const Json& shape) {
    const int64_t hidden = shape["hidden"];
    const bool layer = shape["kind"] == "layernorm", add = shape.value("add", 0) == 1;
    const NormParams params{.kind = layer ? NormKind::kLayer : NormKind::kRms,
                            .num_tokens = shape["tokens"][0],
                            .hidden_size = hidden,
                            .x = kSomewhere,
                            .x_stride = hidden,
                            .add = add ? kSomewhere : nullptr,
                            .add_stride = hidden,
                            .weight = kSomewhere,
                            .bias = layer ? kSomewhere : nullptr,
                            .residual_out = add ? kSomewhere : nullptr,
                            .residual_out_stride = hidden,
                            .out = static_cast<char*>(kSomewhere) + 4096,
                            .out_stride = hidden};
    Validate(params);
    const NormPlan plan = PlanNorm(params);
    EXPECT_GE(plan.blocks * plan.rows_per_block, params.num_tokens);
    EXPECT_LT((plan.blocks - 1) * plan.rows_per_block, params.num_tokens);
    EXPECT_EQ(hidden % plan.width, 0);
  });
}

TEST(SweepPlansTest, SumsOfRanksFitTheDevice) {
  ForEachShape("all_reduce_norm", [](const Json& shape) {
    AllReduceNormParams params{.num_tokens = shape["tokens"][0], .hidden_size = shape["hidden"]};
    params.partial_stride = params.residual_stride = params.residual_out_stride =
        params.out_stride = params.hidden_size;
    params.peers.world_size = shape["ranks"];
    params.peers.bytes =
        AllReduceNormBufferBytes(params.peers.world_size, params.num_tokens, params.hidden_size);
    for (const NamedDevice& device : Devices()) {
      const AllReduceNormPlan plan =
          PlanAllReduceNorm(params, device.facts, params.peers.world_size);
      EXPECT_GE(plan.blocks, 1);
      EXPECT_LE(plan.blocks * params.peers.world_size, device.facts.sm_count);
      EXPECT_LE(plan.threads, 1024);
      EXPECT_GE(AllReduceInboxCapacity(params.peers.bytes),
                AllReduceInboxPackets(plan.variant, params.peers.world_size, params.num_tokens,
                                      params.hidden_size));
    }
  });
}

TEST(SweepPlansTest, AppendPlansHaveEveryHead) {
  ForEachShape("kv_append", [](const Json& shape) {
    KvAppendParams params{.num_tokens = shape["tokens"],
                          .num_q_heads = shape.value("hq", 0),
                          .layout = LayoutOf(shape),
                          .q_out = kSomewhere};
    if (params.num_q_heads > 0) params.q_norm_weight = params.k_norm_weight = kSomewhere;
    const KvAppendPlan plan = PlanKvAppend(params);
    EXPECT_GE(plan.q_groups * plan.rows_per_group, params.num_q_heads);
    EXPECT_GE(plan.kv_groups * plan.rows_per_group, params.layout.num_kv_heads);
    EXPECT_EQ(plan.groups_per_token, plan.q_groups + 2 * plan.kv_groups);
  });
}

TEST(SweepPlansTest, GatherTilesAreWholeAndSmall) {
  ForEachShape("paged_gather", [](const Json& shape) {
    const std::vector<int64_t> lengths = shape["lens"];
    const PagedGatherParams params{
        .layout = LayoutOf(shape),
        .total_tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0})};
    const int32_t tokens = GatherTileTokens(params);
    EXPECT_GE(tokens, 1);
    EXPECT_LE(tokens, kMaxGatherTileTokens);
    EXPECT_TRUE(std::has_single_bit(static_cast<uint32_t>(tokens)));
  });
}

TEST(SweepPlansTest, SamplingPlansHaveEveryLogit) {
  ForEachShape("sampling", [](const Json& shape) {
    const int64_t vocab = shape["vocab"];
    SamplingParams params{.num_rows = shape["rows"][0],
                          .vocab_size = vocab,
                          .logits = static_cast<const float*>(kSomewhere),
                          .logits_stride = vocab,
                          .rules = static_cast<const SamplingRule*>(kSomewhere),
                          .tokens = static_cast<int32_t*>(kSomewhere),
                          .workspace = kSomewhere};
    params.workspace_bytes = SamplingWorkspaceBytes(params.num_rows, vocab);
    Validate(params);
    const SamplingPlan plan = PlanSampling(params);
    EXPECT_GE(int64_t{plan.num_chunks} * kSamplingChunk, vocab);
    EXPECT_LT(int64_t{plan.num_chunks - 1} * kSamplingChunk, vocab);
    const auto* const end =
        reinterpret_cast<const char*>(plan.group_maxima + params.num_rows * plan.num_groups);
    EXPECT_LE(end, static_cast<char*>(kSomewhere) + params.workspace_bytes);
  });
}

TEST(SweepPlansTest, StepsOfOneKernelFitOrAreRefusedWithAReason) {
  int64_t planned = 0;
  ForEachShape("decode_step", [&](const Json& shape) {
    ShapeReader reader("", "", shape);
    const PagedKvLayout layout = reader.Layout();
    const DecodeStepModel model{.num_layers = shape["layers"],
                                .num_q_heads = shape["hq"],
                                .vocab_size = shape["vocab"],
                                .hidden_size = shape["hidden"],
                                .intermediate_size = shape["inner"]};
    const int64_t tokens = shape["tokens"][0], context = shape["context"][0];
    for (const NamedDevice& device : Devices()) {
      const std::string refusal = DecodeStepRefusal(model, layout, tokens, device.facts);
      if (!refusal.empty()) continue;
      const DecodeStepGeometry geometry = DecodeStepGeometryOf(model, layout, tokens, device.facts);
      EXPECT_LE(geometry.shared_bytes, device.facts.shared_bytes_per_block);
      EXPECT_GE(geometry.stages, 3);
      const std::vector<int32_t> parts = DecodeStepParts(
          std::vector<int32_t>(static_cast<size_t>(tokens), DecodeStepTiles(context)), layout,
          device.facts);
      if (parts.empty()) continue;  // the context is too long for the kernel
      ++planned;
      EXPECT_LE(std::accumulate(parts.begin(), parts.end(), int64_t{0}),
                DecodeStepMaxPartials(layout, geometry.blocks));
      EXPECT_GT(DecodeStepWorkspaceBytes(model, layout, device.facts), 0);
    }
  });
  EXPECT_GT(planned, static_cast<int64_t>(kSeeds) / 4);
}

}  // namespace
}  // namespace tokline::bench
