// Host side of Linear: chooses the variant, plans the skinny kernel, lays out scratch, validates
// parameters, and computes the minimum cost.
#include "kernels/linear/linear_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/peer_buffers.h"
#include "kernels/common/rounding.h"
#include "kernels/common/rows.h"
#include "kernels/kv_append/kv_append.h"

namespace tokline {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kWorkspaceAlignment = 256;
constexpr int64_t kUnitBytes = 16;

int64_t WeightRows(const LinearParams& params) {
  return params.gated_silu ? 2 * params.out_features : params.out_features;
}

int64_t WeightBytes(const LinearParams& params) {
  return WeightRows(params) * params.in_features * SizeOf(params.dtype);
}

// Activation rows lie 4 units apart modulo 8, so that the eight lanes of a quarter-warp, four on
// each of two rows, read 16 bytes each from all 32 banks.
int32_t PitchUnits(int64_t in_features) {
  const int64_t units = in_features / 8;
  return static_cast<int32_t>((units + 3) / 8 * 8 + 4);
}

int32_t PartialsUnits(int64_t num_tokens, int32_t splits, int32_t groups) {
  const int64_t bytes = num_tokens * splits * groups * kSkinnyTileRows * int64_t{sizeof(float)};
  return static_cast<int32_t>(DivideUp(bytes, kUnitBytes));
}

// Activations and norm weight, two buffers of partial sums, and one sum of squares per token and
// split.
int64_t SharedBytes(const LinearParams& params, int32_t splits, int32_t groups) {
  const int64_t norm_rows = params.norm_weight ? 1 : 0;
  const int64_t rows =
      (params.num_tokens + norm_rows) * PitchUnits(params.in_features) * kUnitBytes;
  const int64_t partials = 2 * PartialsUnits(params.num_tokens, splits, groups) * kUnitBytes;
  const int64_t squares = norm_rows * params.num_tokens * splits * int64_t{sizeof(float)};
  return rows + partials + squares;
}

// The blocks of kWgmma's busiest SM: a cluster waits until all of its blocks find room.
int32_t BlocksOfBusiestSm(const WgmmaPlan& plan, const DeviceFacts& device) {
  int32_t blocks = DivideUp(plan.grid, device.sm_count);
  while (blocks < plan.grid &&
         plan.grid / plan.cluster > device.ClustersAtOnce(plan.cluster, blocks)) {
    ++blocks;
  }
  return blocks;
}

// Up to so many features a norm within the projection is quicker than kTile and a norm of its own.
constexpr int64_t kShortNormFeatures = 2048;

// Whether kTile ends before kWgmma. The times are microseconds on an H200, fitted to drawn shapes
// (this kernel's README); elsewhere their ratios matter. Only kWgmma leaves and takes sums of
// squares, which saves a norm's kernel.
bool TileEndsFirst(const LinearParams& params, const DeviceFacts& device) {
  constexpr double kBytesPerUs = 4.6e6;
  // With 24 tokens, Qwen3-4B lost 1.6 %.
  if (params.num_tokens > kFewTileTokens || params.x_squares || params.out_squares) return false;
  // Few blocks of kTile leave SMs idle, too: 80 on 132 SMs gained nothing, 86 did. Before a long
  // norm even few are the quicker way in a decoder.
  const int32_t blocks = PlanTile(params, device).Grid();
  const bool long_norm = params.residual && params.out_features > kShortNormFeatures;
  if (!long_norm && blocks * 8 < 5 * device.sm_count) return false;
  const double floor_us = static_cast<double>(WeightBytes(params)) / kBytesPerUs;
  const WgmmaPlan wgmma = PlanWgmma(params, device);
  const int32_t of_busiest = BlocksOfBusiestSm(wgmma, device);
  const double share = static_cast<double>(of_busiest) * device.sm_count / wgmma.grid;
  const double of_sm = static_cast<double>(wgmma.grid) / device.sm_count;
  // Over two blocks per SM run three at a time, and over three in waves, of which one idles SMs.
  const double slower = of_sm <= 2 ? 0.85 * share : of_sm <= 3 ? 0.9 * share : 1 + 0.25 * 3 / of_sm;
  // In small grids all weights are on their way early, unless some blocks have no room until others
  // have ended.
  const bool late = of_sm <= 2 && of_busiest > device.BlocksPerSm(wgmma.shared_bytes);
  const double wgmma_us = 2 + floor_us * std::max(1.08, slower) + (late ? 3 : 0);
  const double waves = static_cast<double>(blocks) / device.sm_count;
  const double tile_us = 2.8 + floor_us * (waves <= 1 ? 1.06 : 1 + 0.09 * std::ceil(waves) / waves);
  const double append_us = params.append ? 1.8 : 0;  // by a kernel of its own
  // Near equal times, kWgmma overlaps more with its predecessor.
  const double margin_us = std::min(1.0, 0.03 * (tile_us + append_us));
  return tile_us + append_us + margin_us < wgmma_us;
}

// Whether kTile's blocks for a down projection are one wave, which leaves few SMs idle.
bool TileFillsTheDeviceOnce(const LinearParams& params, const DeviceFacts& device) {
  if (params.in_features <= params.out_features) return false;
  const int32_t blocks = PlanTile(params, device).Grid();
  return blocks <= device.sm_count && 10 * blocks >= 9 * device.sm_count;
}

// Whether kHead can do everything that is asked for besides products.
bool HeadTakes(const LinearParams& params) { return params.out_f32 && params.bias == nullptr; }

const char* NameInCode(LinearVariant variant) {
  switch (variant) {
    case LinearVariant::kAuto:
      return "kAuto";
    case LinearVariant::kSkinny:
      return "kSkinny";
    case LinearVariant::kNormThenSkinny:
      return "kNormThenSkinny";
    case LinearVariant::kWgmma:
      return "kWgmma";
    case LinearVariant::kTile:
      return "kTile";
    case LinearVariant::kHead:
      return "kHead";
    case LinearVariant::kMatmul:
      return "kMatmul";
  }
  return "unknown";
}

}  // namespace

std::string_view Name(LinearVariant variant) {
  switch (variant) {
    case LinearVariant::kAuto:
      return "auto";
    case LinearVariant::kSkinny:
      return "skinny";
    case LinearVariant::kNormThenSkinny:
      return "norm_then_skinny";
    case LinearVariant::kWgmma:
      return "wgmma";
    case LinearVariant::kTile:
      return "tile";
    case LinearVariant::kHead:
      return "head";
    case LinearVariant::kMatmul:
      return "matmul";
  }
  return "unknown";
}

bool SkinnyFits(const LinearParams& params) {
  return SharedBytes(params, kSkinnyMaxWarps / (params.gated_silu ? 2 : 1),
                     params.gated_silu ? 2 : 1) <= kSkinnySharedBytes;
}

SkinnyPlan PlanSkinny(const LinearParams& params, const DeviceFacts& device) {
  const int64_t row_groups = DivideUp(WeightRows(params), kSkinnyTileRows);
  const int32_t min_groups = params.gated_silu ? 2 : 1;
  SkinnyPlan plan;

  // Uses as many warps as the device can hold at once, but only as many as have a full ring of
  // loads to issue, chosen from the counts that fill an SM with whole blocks.
  const int64_t resident_warps = int64_t{device.sm_count} * kSkinnyResidentThreads / 32;
  const int64_t useful =
      DivideUp(DivideUp(params.in_features, kSkinnyBlockK), int64_t{kSkinnyDepth});
  plan.splits = kSkinnyMinSplits;
  for (const int32_t splits : {6, 8, kSkinnyMaxWarps}) {
    if (splits <= std::min(resident_warps / row_groups, useful) &&
        splits * min_groups <= kSkinnyMaxWarps) {
      plan.splits = splits;
    }
  }

  // Every block reads and normalises all activations, so let more rows share them as the number of
  // tokens grows, as long as the grid still covers the device.
  const int64_t sharing = params.num_tokens <= 4 ? 2 : 4;
  plan.groups = min_groups;
  while (plan.groups * 2 <= std::max<int64_t>(sharing, min_groups) &&
         plan.groups * 2 * plan.splits <= kSkinnyMaxWarps &&
         DivideUp(row_groups, plan.groups * 2) * 8 >= int64_t{device.sm_count} * 7 &&
         SharedBytes(params, plan.splits, plan.groups * 2) <= kSkinnySharedBytes) {
    plan.groups *= 2;
  }

  plan.pitch_units = PitchUnits(params.in_features);
  plan.partials_units = PartialsUnits(params.num_tokens, plan.splits, plan.groups);
  plan.shared_bytes = SharedBytes(params, plan.splits, plan.groups);
  const int32_t tile_columns = plan.groups / min_groups * kSkinnyTileRows;
  plan.tile_columns_log2 = std::countr_zero(static_cast<uint32_t>(tile_columns));
  plan.tiles = static_cast<int32_t>(DivideUp(params.out_features, tile_columns));

  // One block per tile, unless that gives so many short blocks that their prologue matters (LM
  // head).
  constexpr int64_t kMaxWaves = 4;
  const int64_t by_threads = kSkinnyResidentThreads / plan.Threads();
  const int64_t by_shared = device.BlocksPerSm(plan.shared_bytes);
  const int64_t resident = device.sm_count * std::max<int64_t>(1, std::min(by_threads, by_shared));
  plan.grid = static_cast<int32_t>(plan.tiles <= kMaxWaves * resident ? plan.tiles : resident);
  return plan;
}

bool WgmmaRuns(const LinearParams& params, const DeviceFacts& device) {
  return device.HasHopperCode() && params.in_features % 64 == 0 && params.in_features >= 256 &&
         params.in_features <= kMaxWgmmaFeatures;
}

bool WgmmaNormalises(const LinearParams& params) {
  static_assert(kMaxSquaresTokens <= kWgmmaRegisterTokens);
  return params.norm_weight && params.x_squares && params.num_tokens <= kMaxSquaresTokens;
}

bool NeedsHopperCode(LinearVariant variant) {
  return variant == LinearVariant::kWgmma || variant == LinearVariant::kTile ||
         variant == LinearVariant::kHead;
}

bool NormRunsApart(const LinearParams& params, LinearVariant variant) {
  if (variant == LinearVariant::kNormThenSkinny) return true;
  return NeedsHopperCode(variant) && params.norm_weight &&
         !(variant == LinearVariant::kWgmma && WgmmaNormalises(params));
}

WgmmaPlan PlanWgmma(const LinearParams& params, const DeviceFacts& device) {
  WgmmaPlan plan;
  const int64_t tokens = params.num_tokens;
  plan.token_tile =
      static_cast<int32_t>(std::max<uint64_t>(8, std::bit_ceil(static_cast<uint64_t>(tokens))));
  plan.k_units = static_cast<int32_t>(DivideUp(params.in_features, kWgmmaSplitK));
  const auto tiles = static_cast<int32_t>(DivideUp(WeightRows(params), kWgmmaRows));
  const bool in_registers = plan.token_tile <= kWgmmaRegisterTokens;

  // Shares of K stay long enough for two copies, and there are few enough blocks that those of the
  // next kernel fit next to them. Heads are not appended by clusters of 8, because they need more
  // of these than fit at once: a cluster lies in one GPC.
  constexpr int32_t kMinUnits = 2, kMaxCluster = 8, kMaxAppendCluster = 4;
  const int32_t max_blocks = device.sm_count * (in_registers ? 4 : 3) / 2;
  const int32_t cluster_tiles = params.append ? params.append->layout.head_dim / kWgmmaRows : 1;
  const int32_t max_splits = params.append       ? kMaxAppendCluster / cluster_tiles
                             : params.gated_silu ? 4
                                                 : kMaxCluster;
  plan.splits = 1;
  while (plan.splits < max_splits && plan.splits * 2 * kMinUnits <= plan.k_units &&
         tiles * plan.splits * 2 <= max_blocks) {
    plan.splits *= 2;
  }
  plan.cluster = plan.splits * cluster_tiles;
  plan.grid = tiles * plan.splits;
  const int32_t pairs = std::max(1, plan.token_tile / 2 / plan.cluster);
  plan.pairs_log2 = std::countr_zero(static_cast<uint32_t>(pairs));

  // x is needed at once and is consumed quickly. Weights take the rest of the memory with which two
  // blocks, or three in a large grid, can share an SM.
  const int64_t block_k = kWgmmaBlockK;
  const int64_t share_k = DivideUp(plan.k_units, plan.splits) * kWgmmaSplitK;
  const int64_t blocks = share_k / block_k;
  const int64_t weight_stage = 2 * kWgmmaRows * block_k, x_stage = 2 * plan.token_tile * block_k;
  plan.partials_bytes = plan.cluster * (kWgmmaRows / 8) * WgmmaSumsOfEight(2 * pairs) *
                        static_cast<int32_t>(sizeof(float));
  if (WgmmaNormalises(params)) {
    plan.norm_bytes = static_cast<int32_t>(share_k * SizeOf(params.dtype));
  }
  constexpr int64_t kAlignment = 1024, kBarrierBytes = 8;
  // With few tokens, x is kept small enough for blocks of the next kernel to fit on the same SM.
  const int64_t most_x_bytes = int64_t{in_registers ? 8 : 32} << 10;
  const bool large = plan.grid > 2 * device.sm_count;
  const int64_t limit = int64_t{large ? 74 : in_registers ? 100 : 112} << 10;
  const int64_t fixed = kAlignment + plan.partials_bytes + plan.norm_bytes;
  const int64_t max_x_stages = std::clamp<int64_t>(most_x_bytes / x_stage, 2, blocks);
  // In a large grid, stages whose weights are held in registers are filled again before the wait,
  // so fewer stages suffice. In a small grid, whose blocks all fit at once, that would only delay
  // the first products.
  const int64_t held = large ? WgmmaHeldBlocks(plan.token_tile) : 0;
  const auto x_stages = [&](int64_t stages) { return std::min(stages + held, max_x_stages); };
  const auto ring_bytes = [&](int64_t stages) {
    return stages * weight_stage + x_stages(stages) * x_stage;
  };
  int64_t stages = std::min<int64_t>(2, blocks);
  // If eight blocks share K, the last of them would start late for lack of room. That costs more
  // than waiting for a free stage once.
  const int64_t spared = !in_registers && plan.splits == kMaxCluster ? 1 : held;
  while (stages < blocks - spared && fixed + ring_bytes(stages + 1) <= limit) ++stages;
  plan.weight_stages = static_cast<int32_t>(stages);
  plan.x_stages = static_cast<int32_t>(x_stages(stages));
  plan.shared_bytes = fixed + plan.weight_stages * (weight_stage + 2 * kBarrierBytes) +
                      plan.x_stages * (x_stage + 2 * kBarrierBytes) + kBarrierBytes;
  return plan;
}

bool LinearAppends(const LinearParams& params, const DeviceFacts& device) {
  if (params.append == nullptr || params.num_tokens == 0) return false;
  const int32_t head_dim = params.append->layout.head_dim;
  return params.num_tokens <= kWgmmaAppendTokens && (head_dim == 64 || head_dim == 128) &&
         ChooseLinearVariant(params, device) == LinearVariant::kWgmma;
}

bool LinearSends(const LinearParams& params, const DeviceFacts& device) {
  if (params.num_tokens == 0 || params.num_tokens > kMaxSentTokens) return false;
  if (params.out_features % 8 != 0) return false;
  if (params.gated_silu || params.out_f32 || params.residual || params.append) return false;
  const LinearVariant variant = ChooseLinearVariant(params, device);
  return variant == LinearVariant::kWgmma || variant == LinearVariant::kTile;
}

LinearVariant ChooseLinearVariant(const LinearParams& params, const DeviceFacts& device) {
  if (params.variant != LinearVariant::kAuto) return params.variant;
  static_assert(std::ranges::all_of(
      kSkinnyRanges, [](const FewTokensRange& range) { return range.tokens <= kMaxSkinnyTokens; }));
  static_assert(std::ranges::all_of(
      kWgmmaRanges, [](const FewTokensRange& range) { return range.tokens <= kMaxWgmmaTokens; }));
  const int64_t weight_bytes = WeightBytes(params);
  const auto in_range = [&](const FewTokensRange& range) {
    return params.num_tokens <= range.tokens && weight_bytes <= range.weight_bytes;
  };
  if (WgmmaRuns(params, device)) {
    if (HeadTakes(params) && params.num_tokens <= kMaxHeadTokens &&
        params.out_features >= int64_t{device.sm_count} * kHeadRows) {
      return LinearVariant::kHead;
    }
    const auto tile_from = [&](int64_t tokens) {
      return params.num_tokens >= tokens && params.num_tokens <= kLargestTokenTile;
    };
    if (params.num_tokens > kLargestTokenTile && params.num_tokens <= kMaxTileTokens &&
        std::min(params.in_features, params.out_features) <= kManyTokensFeatures &&
        weight_bytes <= (params.gated_silu ? kManyTokensGatedBytes : kManyTokensBytes)) {
      return LinearVariant::kTile;
    }
    if (params.gated_silu && tile_from(kTileGatedTokens)) return LinearVariant::kTile;
    const bool wide = params.in_features <= params.out_features && weight_bytes <= kTileWeightBytes;
    if (wide && tile_from(kTileWideTokens)) return LinearVariant::kTile;
    if (std::ranges::any_of(kWgmmaRanges, in_range)) {
      return TileEndsFirst(params, device) ? LinearVariant::kTile : LinearVariant::kWgmma;
    }
    if (tile_from(kTileTokens) && (params.gated_silu || weight_bytes <= kTileWeightBytes ||
                                   TileFillsTheDeviceOnce(params, device))) {
      return LinearVariant::kTile;
    }
  }
  if (!std::ranges::any_of(kSkinnyRanges, in_range) || !SkinnyFits(params)) {
    return LinearVariant::kMatmul;
  }
  return params.norm_weight && params.num_tokens >= kNormApartTokens
             ? LinearVariant::kNormThenSkinny
             : LinearVariant::kSkinny;
}

bool LinearLeavesSquares(LinearParams params, const DeviceFacts& device) {
  if (params.num_tokens > kMaxSquaresTokens) return false;
  // Otherwise the next norm is a kernel of its own. With few features that costs more than kTile
  // gains.
  float squares;
  if (params.out_features <= kShortNormFeatures) params.out_squares = &squares;
  return ChooseLinearVariant(params, device) == LinearVariant::kWgmma;
}

bool LinearRuns(const LinearParams& params, const DeviceFacts& device) {
  LinearParams skinny = params;
  switch (params.variant) {
    case LinearVariant::kAuto:
    case LinearVariant::kMatmul:
      return true;
    case LinearVariant::kWgmma:
      return params.num_tokens <= kMaxWgmmaTokens && WgmmaRuns(params, device);
    case LinearVariant::kTile:
      return params.num_tokens <= kMaxTileTokens && WgmmaRuns(params, device);
    case LinearVariant::kHead:
      return params.num_tokens <= kMaxHeadTokens && HeadTakes(params) && WgmmaRuns(params, device);
    case LinearVariant::kNormThenSkinny:
      if (params.norm_weight == nullptr) return false;
      skinny.norm_weight = nullptr;
      break;
    case LinearVariant::kSkinny:
      break;
  }
  return params.num_tokens <= kMaxSkinnyTokens && SkinnyFits(params) &&
         PlanSkinny(skinny, device).shared_bytes <= device.shared_bytes_per_block;
}

int32_t LinearBestParts(const LinearParams& params, const DeviceFacts& device) {
  if (params.num_tokens == 0 || ChooseLinearVariant(params, device) != LinearVariant::kHead) {
    return 0;
  }
  return PlanHead(params, device).Parts();
}

LinearChoice PlanLinear(const LinearParams& params, const DeviceFacts& device) {
  LinearChoice choice{.variant = ChooseLinearVariant(params, device)};
  if (choice.variant == LinearVariant::kMatmul || params.num_tokens == 0) return choice;
  if (NeedsHopperCode(choice.variant)) {
    Require(WgmmaRuns(params, device), NameInCode(choice.variant), " with in_features ",
            params.in_features, " on compute capability ", device.compute_major, ".",
            device.compute_minor, " and code for ", device.code_architecture / 10, ".",
            device.code_architecture % 10, "; it needs a multiple of 64, 256 to ",
            kMaxWgmmaFeatures, ", and code for sm_90a");
    if (choice.variant == LinearVariant::kWgmma) choice.wgmma = PlanWgmma(params, device);
    if (choice.variant == LinearVariant::kTile) choice.tile = PlanTile(params, device);
    if (choice.variant == LinearVariant::kHead) choice.head = PlanHead(params, device);
    return choice;
  }
  LinearParams skinny = params;
  if (choice.variant == LinearVariant::kNormThenSkinny) skinny.norm_weight = nullptr;
  choice.skinny = PlanSkinny(skinny, device);
  if (choice.skinny.shared_bytes > device.shared_bytes_per_block) {
    Require(params.variant == LinearVariant::kAuto, "kSkinny with num_tokens ", params.num_tokens,
            " and in_features ", params.in_features, " needs ", choice.skinny.shared_bytes,
            " B of shared memory a block; this device has ", device.shared_bytes_per_block);
    choice = {.variant = LinearVariant::kMatmul};
  }
  return choice;
}

LinearScratch LinearScratchOf(const LinearParams& params) {
  const int64_t element = SizeOf(params.dtype);
  LinearScratch scratch;
  scratch.bytes = Matmul::kWorkspaceBytes;
  scratch.normalised_bytes_at = scratch.bytes;
  if (params.norm_weight) {
    scratch.bytes += RoundUp(params.num_tokens * params.in_features * element, kWorkspaceAlignment);
  }
  scratch.gate_up_bytes_at = scratch.bytes;
  if (params.gated_silu) {
    scratch.bytes +=
        RoundUp(params.num_tokens * 2 * params.out_features * element, kWorkspaceAlignment);
  }
  return scratch;
}

int64_t LinearWorkspaceBytes(const LinearParams& params) { return LinearScratchOf(params).bytes; }

void ValidateAppend(const LinearParams& params, const KvAppendParams& append) {
  Require(!params.gated_silu && !params.out_f32 && !params.residual,
          "append goes with none of gated_silu, out_f32 and residual");
  const int64_t heads = append.num_q_heads + 2 * int64_t{append.layout.num_kv_heads};
  Require(append.num_q_heads >= 1 && params.out_features == heads * append.layout.head_dim,
          "out_features is ", params.out_features, "; append takes ", append.num_q_heads,
          " heads of q, at least one, and ", append.layout.num_kv_heads, " of k and of v, ",
          append.layout.head_dim, " wide each");
}

void Validate(const LinearParams& params) {
  const int64_t element = SizeOf(params.dtype);
  Require(params.num_tokens >= 0 && params.num_tokens <= INT32_MAX, "num_tokens is ",
          params.num_tokens, "; it must be 0 to ", INT32_MAX);
  Require(params.in_features >= 8 && params.in_features % 8 == 0 && params.in_features <= INT32_MAX,
          "in_features is ", params.in_features, "; it must be a multiple of 8, 8 to ", INT32_MAX);
  Require(params.out_features >= 1 && params.out_features <= INT32_MAX / 2, "out_features is ",
          params.out_features, "; it must be 1 to ", INT32_MAX / 2);
  Require(!params.gated_silu || params.out_features % 8 == 0, "out_features is ",
          params.out_features, "; with gated_silu it must be a multiple of 8");
  Require(!params.gated_silu || !params.residual, "gated_silu and residual exclude each other");
  Require(!params.out_f32 || (!params.gated_silu && !params.residual),
          "out_f32 goes neither with gated_silu nor with residual");
  Require(!params.norm_weight || (params.norm_eps >= 0 && std::isfinite(params.norm_eps)),
          "norm_eps is ", params.norm_eps, "; it must be finite and >= 0");
  const bool apart = params.variant == LinearVariant::kNormThenSkinny;
  Require(!apart || params.norm_weight, "kNormThenSkinny needs a norm_weight; it is null");
  const bool skinny = apart || params.variant == LinearVariant::kSkinny;
  const char* const variant = NameInCode(params.variant);
  Require(!skinny || params.num_tokens <= kMaxSkinnyTokens, "num_tokens is ", params.num_tokens,
          "; ", variant, " takes at most ", kMaxSkinnyTokens);
  Require(!skinny || SkinnyFits(params), variant, " with num_tokens ", params.num_tokens,
          " and in_features ", params.in_features, " needs more than the ", kSkinnySharedBytes,
          " B of shared memory that it may take");
  Require(params.variant != LinearVariant::kWgmma || params.num_tokens <= kMaxWgmmaTokens,
          "num_tokens is ", params.num_tokens, "; kWgmma takes at most ", kMaxWgmmaTokens);
  Require(params.variant != LinearVariant::kTile || params.num_tokens <= kMaxTileTokens,
          "num_tokens is ", params.num_tokens, "; kTile takes at most ", kMaxTileTokens);
  const bool head = params.variant == LinearVariant::kHead;
  Require(!head || params.num_tokens <= kMaxHeadTokens, "num_tokens is ", params.num_tokens,
          "; kHead takes at most ", kMaxHeadTokens);
  Require(!head || HeadTakes(params), "out_f32 is ", params.out_f32, " and bias is ", params.bias,
          "; kHead needs out_f32 and no bias");
  Require(!params.only_best || params.best, "only_best needs best; it is null");
  Require(!params.out_squares || (!params.gated_silu && !params.out_f32 && !params.append),
          "out_squares goes with none of gated_silu, out_f32 and append");
  Require(!params.out_squares || params.num_tokens <= kMaxSquaresTokens, "num_tokens is ",
          params.num_tokens, "; with out_squares it is at most ", kMaxSquaresTokens);
  Require(!params.out_squares || params.out_squares != params.x_squares,
          "x_squares and out_squares are both ", params.x_squares, "; they must not overlap");
  if (params.append) ValidateAppend(params, *params.append);
  Require(!params.send || (!params.gated_silu && !params.out_f32 && !params.residual &&
                           !params.append && params.out_features % 8 == 0),
          "send goes with none of gated_silu, out_f32, residual and append, and needs an "
          "out_features that is a multiple of 8; it is ",
          params.out_features);
  if (params.send) {
    const PeerBuffers& peers = *params.send;
    Require(peers.world_size >= 2 && peers.world_size <= kMaxRanks && peers.rank >= 0 &&
                peers.rank < peers.world_size,
            "send is for rank ", peers.rank, " of ", peers.world_size, "; there must be 2 to ",
            kMaxRanks, " ranks");
    const int64_t needed = peers.world_size * params.num_tokens * params.out_features /
                           kAllReducePacketElements * kAllReducePacketBytes;
    const int64_t room =
        AllReduceInboxCapacity(peers.bytes - peers.slab_bytes) * kAllReducePacketBytes;
    Require(needed <= room, "send takes ", needed, " B of an inbox; it has ", room);
    RequireBuffers(peers, " of send");
  }
  Require(params.prefetch_bytes >= 0 && (params.prefetch || params.prefetch_bytes == 0) &&
              IsAligned(params.prefetch, kAlignment),
          "prefetch is ", params.prefetch, " with ", params.prefetch_bytes, " bytes; it must be ",
          kAlignment, " B aligned, or null with 0 bytes");
  if (params.num_tokens == 0) return;

  Require(params.x && params.weight && params.out, "x, weight and out must not be null");
  RequireAligned("x", params.x);
  RequireAligned("weight", params.weight);
  RequireAligned("norm_weight", params.norm_weight);
  RequireAligned("x_squares", params.x_squares);
  Require(params.x != params.out, "x and out are both ", params.x, "; they must not overlap");
  if (params.num_tokens == 1) return;

  Require(params.x_stride >= params.in_features && params.x_stride * element % kAlignment == 0,
          "x_stride is ", params.x_stride, "; it must be at least in_features, ",
          params.in_features, ", and rows ", kAlignment, " B aligned");
  const int64_t rows = params.num_tokens;
  RequireStride(rows, params.out_stride, "out_stride", params.out_features, "out_features");
  if (!params.residual) return;
  RequireStride(rows, params.residual_stride, "residual_stride", params.out_features,
                "out_features");
  RequireOneStride(rows, params.residual, params.residual_stride, params.out, params.out_stride,
                   "residual and out");
}

void ValidateLaunch(const LinearParams& params, LinearVariant variant) {
  Require(params.dtype == DType::kBf16 || params.dtype == DType::kF16, "dtype is ",
          Name(params.dtype), "; CUDA kernels take bf16 and f16");
  const bool wgmma = variant == LinearVariant::kWgmma;
  Require(wgmma || !params.out_squares, "out_squares with ", NameInCode(variant),
          "; kWgmma alone makes them");
  Require(!params.append || (wgmma && params.num_tokens <= kWgmmaAppendTokens), "append with ",
          NameInCode(variant), " and num_tokens ", params.num_tokens,
          "; kWgmma appends with at most ", kWgmmaAppendTokens);
  Require(!params.send || wgmma || variant == LinearVariant::kTile, "send with ",
          NameInCode(variant), "; kWgmma and kTile alone send");
  Require(!params.send || params.num_tokens <= kMaxSentTokens, "send with num_tokens ",
          params.num_tokens, "; at most ", kMaxSentTokens, " are sent");
  Require(variant == LinearVariant::kHead || !params.best, "best with ", NameInCode(variant),
          "; kHead alone finds it");
  const bool scratch = variant == LinearVariant::kMatmul || NormRunsApart(params, variant);
  if (!scratch || params.num_tokens == 0) return;
  Require(variant != LinearVariant::kMatmul || params.matmul != nullptr,
          "matmul is null; kMatmul (num_tokens ", params.num_tokens, ") needs one");
  Require(params.workspace && IsAligned(params.workspace, kWorkspaceAlignment), "workspace is at ",
          params.workspace, "; ", NameInCode(variant), " needs one, ", kWorkspaceAlignment,
          " B aligned");
  Require(params.workspace_bytes >= LinearWorkspaceBytes(params), "workspace_bytes is ",
          params.workspace_bytes, "; LinearWorkspaceBytes asks for ", LinearWorkspaceBytes(params));
}

Cost CostOf(const LinearParams& params) {
  const double tokens = params.num_tokens, k = params.in_features, rows = WeightRows(params);
  const double outputs = tokens * params.out_features;
  const double element = SizeOf(params.dtype);
  Cost cost;
  if (params.num_tokens == 0) return cost;
  cost.read_bytes = (tokens * k + rows * k) * element;                      // x, weight
  if (params.norm_weight) cost.read_bytes += k * element;                   // norm_weight
  if (params.bias) cost.read_bytes += rows * element;                       // bias
  if (params.residual) cost.read_bytes += outputs * element;                // residual
  cost.write_bytes = outputs * (params.out_f32 ? sizeof(float) : element);  // out
  cost.flops = 2 * tokens * rows * k;                                       // multiply-adds
  if (params.norm_weight) cost.flops += 4 * tokens * k;  // square, add, scale, weight
  if (params.bias) cost.flops += tokens * rows;
  if (params.gated_silu) cost.flops += 4 * outputs;  // exp, add, divide, multiply
  if (params.residual) cost.flops += outputs;
  return cost;
}

}  // namespace tokline
