// Decides which models and steps decode_step takes and how it divides them, and computes their
// cost.
#include "kernels/decode_step/decode_step_plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr int32_t kMinPartTiles = 4;  // shorter contexts are not cut: a merge costs more

// The maximum number of features that a block computes, in units of two.
int64_t RowsPerBlock(int64_t features, int64_t blocks) {
  return 2 * DivideUp(features / 2, blocks);
}

// The number of copies in flight per block. The more there are, the longer every hop between blocks
// takes. One suffices to fill the ring between the hops of a layer if the block's part of a layer
// is small.
int32_t InFlight(const DecodeStepModel& model, const PagedKvLayout& layout, int32_t tokens,
                 const DeviceFacts& device) {
  constexpr int64_t kSmallBytes = 400 << 10;
  const int64_t heads = 2 * (model.num_q_heads + layout.num_kv_heads);
  const int64_t layer =
      2 * model.hidden_size * (heads * layout.head_dim + 3 * model.intermediate_size);
  return tokens == 1 && layer / std::max(device.sm_count, 1) < kSmallBytes
             ? 1
             : kDecodeStepMostInFlight;
}

}  // namespace

DecodeStepGeometry DecodeStepGeometryOf(const DecodeStepModel& model, const PagedKvLayout& layout,
                                        int64_t num_tokens, const DeviceFacts& device) {
  const int32_t group = model.num_q_heads / layout.num_kv_heads;
  const auto tokens = static_cast<int32_t>(num_tokens);
  DecodeStepGeometry geometry{.blocks = device.sm_count};
  int32_t bytes = 0;
  const auto take = [&bytes](int32_t count) {
    const int32_t offset = bytes;
    bytes += static_cast<int32_t>(RoundUp(count, 16));
    return offset;
  };
  const int32_t x = take(tokens * DecodeStepXPitch(DecodeStepMaxFeatures(model, layout.head_dim)));
  const int32_t sums = take(kDecodeStepPassRows * (kDecodeStepWarps * tokens * 8 + 8) * 4);
  const int32_t rows_of_task = take((group + 2) * (2 * layout.head_dim + 16));
  const int32_t states = take(kDecodeStepWarps * (group * (layout.head_dim + 4) + 16) * 4);
  const int32_t tiles = take(kDecodeStepMaxTiles * 4);
  constexpr int32_t kMaxStages = 6;
  const int32_t barriers = take(kMaxStages * 16);
  constexpr int32_t kAlignment = 1024;
  const auto room = static_cast<int32_t>(device.shared_bytes_per_block) - kDecodeStepStaticBytes -
                    kAlignment - bytes;
  geometry.stages = std::min(kMaxStages, room / kDecodeStepStageBytes);
  geometry.in_flight = InFlight(model, layout, tokens, device);
  const int32_t ring = geometry.stages * kDecodeStepStageBytes;
  geometry.x = ring + x;
  geometry.sums = ring + sums;
  geometry.rows = ring + rows_of_task;
  geometry.states = ring + states;
  geometry.tiles = ring + tiles;
  geometry.barriers = ring + barriers;
  geometry.shared_bytes = ring + bytes + kAlignment;
  return geometry;
}

std::string DecodeStepRefusal(const DecodeStepModel& model, const PagedKvLayout& layout,
                              int64_t num_tokens, const DeviceFacts& device) {
  if (!device.HasHopperCode()) return "it needs an sm_90a GPU and code compiled for it";
  if (num_tokens < 1 || num_tokens > kMaxDecodeStepTokens) {
    return StrCat("a step of ", num_tokens, " tokens; it takes 1 to ", kMaxDecodeStepTokens);
  }
  if (layout.order != KvOrder::kHnd) return "pages in NHD order; it takes HND";
  if (layout.head_dim != 64 && layout.head_dim != 128) {
    return StrCat("head_dim ", layout.head_dim, "; it takes 64 and 128");
  }
  if (layout.num_kv_heads < 1 || model.num_q_heads % layout.num_kv_heads != 0 ||
      model.num_q_heads / layout.num_kv_heads > kDecodeStepMaxGroup) {
    return StrCat(model.num_q_heads, " query heads on ", layout.num_kv_heads,
                  " KV heads; it takes groups of 1 to ", kDecodeStepMaxGroup);
  }
  if (model.hidden_size % 32 != 0 || model.hidden_size > kDecodeStepMaxHidden) {
    return StrCat("hidden size ", model.hidden_size, "; it takes multiples of 32 up to ",
                  kDecodeStepMaxHidden);
  }
  if (model.intermediate_size % 32 != 0) {
    return StrCat("intermediate size ", model.intermediate_size, "; it takes multiples of 32");
  }
  if (model.vocab_size % 2 != 0) {
    return StrCat("a vocabulary of ", model.vocab_size, "; it takes even sizes");
  }
  // A block's sums of the residual stream must fit one pass.
  if (RowsPerBlock(model.hidden_size, device.sm_count) > 8 * kDecodeStepPassRows) {
    return StrCat(device.sm_count, " SMs are too few for hidden size ", model.hidden_size);
  }
  if (num_tokens * layout.num_kv_heads > int64_t{kDecodeStepMaxTasks} * device.sm_count) {
    return StrCat(num_tokens, " tokens of ", layout.num_kv_heads, " KV heads; it takes ",
                  kDecodeStepMaxTasks * device.sm_count, " in all");
  }
  constexpr int32_t kMinStages = 3;
  const DecodeStepGeometry geometry = DecodeStepGeometryOf(model, layout, num_tokens, device);
  if (geometry.stages < kMinStages) {
    return StrCat("shared memory has room for ", geometry.stages, " stages of weights; it needs ",
                  kMinStages);
  }
  return "";
}

std::vector<int32_t> DecodeStepParts(std::span<const int32_t> tiles, const PagedKvLayout& layout,
                                     const DeviceFacts& device) {
  // One task per block, or one per sequence and KV head if there are more of these.
  const int64_t budget =
      std::max<int64_t>(device.sm_count / layout.num_kv_heads, std::ssize(tiles));
  int64_t all = 0, longest = 0;
  for (const int32_t count : tiles) {
    all += count;
    longest = std::max<int64_t>(longest, count);
  }
  // The time of a merge grows with its parts, and that of a part with its tiles.
  int64_t unit = std::max<int64_t>(kMinPartTiles, DivideUp(all, budget));
  while (unit * unit < longest) ++unit;
  std::vector<int32_t> parts(tiles.size());
  const auto cut = [&] {
    std::ranges::transform(tiles, parts.begin(), [unit](int32_t count) {
      return static_cast<int32_t>(std::max<int64_t>(1, DivideUp(count, unit)));
    });
    return std::accumulate(parts.begin(), parts.end(), int64_t{0});
  };
  while (cut() > budget) ++unit;
  const int64_t tasks = DivideUp(cut() * layout.num_kv_heads, device.sm_count);
  if (tasks * std::min(unit, longest) > kDecodeStepMaxTiles) return {};
  return parts;
}

int64_t DecodeStepWorkspaceBytes(const DecodeStepModel& model, const PagedKvLayout& layout,
                                 const DeviceFacts& device) {
  return kDecodeStepStateBytes + 2 * 4 * DecodeStepSetWords(model, layout, device.sm_count);
}

void Validate(const DecodeStepParams& params) {
  const DecodeStepModel& model = params.model;
  Require(params.num_tokens >= 0, "num_tokens is ", params.num_tokens, "; it must be >= 0");
  if (params.num_tokens == 0) return;
  Require(model.num_layers >= 1, "num_layers is ", model.num_layers, "; it must be >= 1");
  Validate(params.layout);
  Require(model.num_q_heads >= 1 && model.num_q_heads % params.layout.num_kv_heads == 0,
          "num_q_heads is ", model.num_q_heads, "; it must be a multiple of num_kv_heads, ",
          params.layout.num_kv_heads);
  Require(model.hidden_size >= 8 && model.intermediate_size >= 8 && model.vocab_size >= 1,
          "hidden_size, intermediate_size and vocab_size are ", model.hidden_size, ", ",
          model.intermediate_size, " and ", model.vocab_size);
  Require(params.table.num_seqs == params.num_tokens, "the table has ", params.table.num_seqs,
          " sequences, the step ", params.num_tokens, " tokens");
  Require(params.table.seq_shifts == nullptr, "the contexts of decode_step cannot be shifted");
  Require((model.q_norm == nullptr) == (model.k_norm == nullptr),
          "q_norm and k_norm must both be given or both be null");
  Require(params.rope_rows >= 1, "rope_rows is ", params.rope_rows, "; it must be >= 1");
  Require(model.layer_stride_bytes % 16 == 0, "layer_stride_bytes is ", model.layer_stride_bytes,
          "; it must be a multiple of 16");
  RequireTensor("embedding", model.embedding);
  RequireTensor("final_norm", model.final_norm);
  RequireTensor("lm_head", model.lm_head);
  RequireTensor("input_norm", model.input_norm);
  RequireTensor("qkv", model.qkv);
  RequireAligned("qkv_bias", model.qkv_bias);
  RequireAligned("q_norm", model.q_norm);
  RequireAligned("k_norm", model.k_norm);
  RequireTensor("o", model.o);
  RequireTensor("post_norm", model.post_norm);
  RequireTensor("gate_up", model.gate_up);
  RequireTensor("down", model.down);
  RequireTensor("kv", params.kv);
  RequireTensor("rope_cos_sin", params.rope_cos_sin);
  RequireTensor("token_ids", params.token_ids, alignof(int32_t));
  RequireTensor("positions", params.positions, alignof(int32_t));
  RequireTensor("slots", params.slots, alignof(int64_t));
  RequireTensor("logits", params.logits, kDecodeStepLogitsAlignment);
}

void ValidateLaunch(const DecodeStepParams& params, const DeviceFacts& device) {
  const std::string refusal =
      DecodeStepRefusal(params.model, params.layout, params.num_tokens, device);
  Require(refusal.empty(), "decode_step refuses this step: ", refusal);
  const int64_t needed = DecodeStepWorkspaceBytes(params.model, params.layout, device);
  RequireTensor("workspace", params.workspace, kDecodeStepWorkspaceAlignment);
  Require(params.workspace_bytes >= needed, "workspace_bytes is ", params.workspace_bytes, "; ",
          needed, " are needed");
  Require(params.parts != nullptr, "parts must not be null");
  RequireAligned("stamps", params.stamps, alignof(int64_t));
}

// The table must be on the host.
Cost CostOf(const DecodeStepParams& params) {
  const DecodeStepModel& model = params.model;
  const double element = static_cast<double>(SizeOf(model.dtype));
  const auto tokens = static_cast<double>(params.num_tokens);
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto inner = static_cast<double>(model.intermediate_size);
  const double q = static_cast<double>(model.num_q_heads) * params.layout.head_dim;
  const double k = static_cast<double>(params.layout.num_kv_heads) * params.layout.head_dim;
  const auto layers = static_cast<double>(model.num_layers);
  const auto vocab = static_cast<double>(model.vocab_size);
  double context = 0;
  for (int32_t seq = 0; seq < params.table.num_seqs; ++seq) {
    context += static_cast<double>(SequenceLength(params.table, seq));
  }
  const double matrices = hidden * (q + 2 * k) + hidden * q + 3 * hidden * inner;
  const double vectors = 2 * hidden + (model.qkv_bias ? q + 2 * k : 0) +
                         (model.q_norm ? 2.0 * params.layout.head_dim : 0);
  Cost cost;
  cost.read_bytes =
      element * (layers * (matrices + vectors) + vocab * hidden + hidden) +
      element * tokens * hidden +                                   // embedding rows
      element * layers * 2 * k * std::max(context - tokens, 0.0) +  // K and V of earlier tokens
      4.0 * tokens * params.layout.head_dim;                        // angles
  cost.write_bytes = element * layers * 2 * k * tokens + 4.0 * tokens * vocab;
  cost.flops = 2 * tokens * (layers * matrices + vocab * hidden) + 4 * layers * q * context;
  return cost;
}

}  // namespace tokline
