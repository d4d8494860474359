// Carves the buffers of a decoder out of one block of memory, and refuses a plan that does not fit.
#include "harness/engine/decoder_memory.h"

#include <algorithm>

#include "harness/engine/carver.h"
#include "harness/engine/device_weights.h"
#include "harness/engine/one_kernel_step.h"
#include "harness/engine/rope_table.h"
#include "harness/engine/shifted_copy.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {

MemoryNeeds DecoderBuffers::Place(const DecoderConfig& config, std::byte* base) {
  const ModelSpec& spec = config.shard.local;
  const int64_t element = SizeOf(config.options.dtype);
  const int64_t tokens = config.max_tokens, batch = config.options.max_batch;
  const int64_t q = spec.QSize(), kv_size = spec.KvSize(), hidden = spec.hidden_size;
  const bool split_norm =
      config.split_input_norm || config.split_mlp || config.split_final_norm || config.Divided();
  const bool split_gate = config.split_mlp && spec.mlp == ActivationKind::kGatedSilu;
  Carver carver(base);
  MemoryNeeds memory;

  x = carver.TakeBytes(tokens * hidden * element);
  partial = carver.TakeBytes(config.Divided() ? tokens * hidden * element : 0);
  qkv_bytes = tokens * (q + 2 * kv_size) * element;
  if (config.options.reuse) qkv_bytes = std::max(qkv_bytes, ShiftedCopyBytes(config, 1));
  qkv = carver.TakeBytes(qkv_bytes);
  attention = carver.TakeBytes(tokens * q * element);
  mlp = carver.TakeBytes(tokens * spec.intermediate_size * element);
  last = carver.TakeBytes(batch * hidden * element);
  normed = carver.TakeBytes(split_norm ? tokens * hidden * element : 0);
  x_squares = carver.Take<float>(config.OnDevice() ? std::min(tokens, kMaxSquaresTokens) *
                                                         DivideUp(hidden, 64) * kLinearSquares
                                                   : 0);
  gate_up = carver.TakeBytes(split_gate ? tokens * spec.UpRows() * element : 0);
  logits = carver.Take<float>(batch * config.shard.whole.vocab_size);
  best = carver.Take<uint64_t>(config.OnDevice() ? batch * MostLinearBestParts(config.facts) : 0);
  sampled = carver.Take<int32_t>(batch);
  memory.activation_bytes = carver.Size();

  linear_workspace = carver.TakeBytes(config.linear_workspace_bytes);
  sampling_workspace = carver.TakeBytes(config.sampling_workspace_bytes);
  const auto workspace_of = [&](int32_t num_seqs, int64_t max_partials) {
    DecodeWorkspace workspace{.num_seqs = num_seqs};
    workspace.max_partials = max_partials;
    workspace.bytes =
        ChunkDecodeWorkspaceBytes(num_seqs, max_partials, spec.num_q_heads, config.layout);
    return workspace;
  };
  decode_workspaces.clear();
  if (config.full_grid.num_lanes > 0 && !config.Ablates(Ablation::kChunkDecode)) {
    const auto counters = [&](int32_t num_seqs) {
      return ChunkDecodeCounterBytes(num_seqs, config.layout);
    };
    // All share one block, in which the states of every bucket begin at the same place.
    const int64_t before_states = counters(config.buckets.back());
    int64_t room = 0;
    for (const int32_t bucket : config.buckets) {
      const DecodeWorkspace& workspace =
          decode_workspaces.emplace_back(workspace_of(bucket, config.MaxPartials(bucket)));
      room = std::max(room, before_states - counters(bucket) + workspace.bytes);
    }
    std::byte* const block = carver.TakeBytes(room);
    for (DecodeWorkspace& workspace : decode_workspaces) {
      if (base != nullptr) workspace.data = block + (before_states - counters(workspace.num_seqs));
    }
  }
  if (config.full_grid.num_lanes > 0 && config.Ablates(Ablation::kPagedPrefill)) {
    const AttentionShape& shape = config.largest_step.prefill;
    prefill_workspace = workspace_of(shape.num_seqs, DecodeRoomOf(shape).members);
    prefill_workspace.data = carver.TakeBytes(prefill_workspace.bytes);
  }
  prefill_parts_bytes =
      PagedPrefillWorkspaceBytes(spec.head_dim, config.largest_step.prefill.max_parts);
  prefill_parts = carver.TakeBytes(prefill_parts_bytes);
  if (config.one_kernel_rows > 0) {
    decode_step_workspace_bytes = DecodeStepWorkspaceBytes(
        StepModelOf(spec, config.options.dtype, nullptr), config.layout, config.facts);
    decode_step_workspace = carver.TakeBytes(decode_step_workspace_bytes);
  }
  memory.workspace_bytes = carver.Size() - memory.activation_bytes;

  const int64_t before_tables = carver.Size();
  const bool rotates = spec.position == PositionKind::kRope;
  rope = carver.Take<float>(rotates ? config.options.max_context * spec.head_dim : 0);
  step = carver.TakeBytes(PlaceStep(config.largest_step, nullptr).bytes);
  memory.table_bytes = carver.Size() - before_tables;
  constexpr int64_t kTurns = 2;  // as in DecoderRank
  memory.staging_bytes = kTurns * (PlaceStep(config.largest_step, nullptr).bytes +
                                   2 * batch * int64_t{sizeof(int32_t)});

  kv = carver.TakeBytes(spec.num_layers * config.layout.NumElements() * element);
  memory.kv_bytes = spec.num_layers * config.layout.NumElements() * element;
  return memory;
}

DecoderBuffers::DecoderBuffers(const DecoderConfig& config, Backend& backend) {
  MemoryNeeds memory = Place(config, nullptr);
  memory_ = backend.Allocate(memory.Total());
  Place(config, memory_.data());
  if (rope == nullptr) return;
  const ModelSpec& spec = config.shard.local;
  const std::vector<float> table =
      MakeRopeTable(config.options.max_context, spec.head_dim, spec.rope_theta, spec.rope_scaling);
  backend.Upload(rope, table.data(), static_cast<int64_t>(table.size() * sizeof(float)));
}

MemoryNeeds MemoryNeedsOf(const ModelSpec& spec, const DecoderOptions& options,
                          const DeviceFacts& facts) {
  const DecoderConfig config(spec, options, facts);
  MemoryNeeds memory = DecoderBuffers().Place(config, nullptr);
  memory.weight_bytes = DeviceWeights::Bytes(config.shard.local, options.dtype);
  if (config.OnDevice() && config.Divided() && options.Processes() == nullptr) {
    memory.exchange_bytes = SumRoomOf(spec, options).Bytes(options.ranks);
    memory.workspace_bytes += memory.exchange_bytes;
  }
  return memory;
}

void RequireRoom(const MemoryNeeds& needs, int64_t free_bytes) {
  if (needs.Total() <= free_bytes) return;
  throw RuntimeFailure(StrCat("device memory does not suffice: ", needs.Total(),
                              " bytes are needed (weights ", needs.weight_bytes, ", KV cache ",
                              needs.kv_bytes, ", activations ", needs.activation_bytes,
                              ", workspaces ", needs.workspace_bytes, ", tables ",
                              needs.table_bytes, "), ", free_bytes, " are free"));
}

}  // namespace tokline
