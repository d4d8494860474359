#include "harness/decoder/decoder_memory.h"

#include <algorithm>

#include "harness/decoder/carver.h"
#include "harness/decoder/device_weights.h"
#include "harness/decoder/rope_table.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

DecoderOptions Resolve(const ModelSpec& spec, DecoderOptions options) {
  const std::string_view device = Name(options.device);
  Require(options.device == Device::kCpu || options.dtype != DType::kF32, "dtype is ",
          Name(options.dtype), " on device ", device, "; supported there: bf16, f16");
  Require(options.max_batch >= 1 && options.max_batch <= 4096, "max_batch is ", options.max_batch,
          "; it must be 1 to 4096");
  if (options.max_context == 0) options.max_context = spec.max_positions;
  Require(options.max_context >= 1 && options.max_context <= spec.max_positions, "max_context is ",
          options.max_context, "; the model has positions for 1 to ", spec.max_positions);
  Require(options.token_budget >= 1 && options.token_budget <= (int64_t{1} << 20),
          "token_budget is ", options.token_budget, "; it must be 1 to ", int64_t{1} << 20);
  options.token_budget =
      std::min(options.token_budget, int64_t{options.max_batch} * options.max_context);
  Require(options.page_size >= 16, "page_size is ", options.page_size,
          "; it must be a power of two from 16");
  const int64_t sequence_pages = DivideUp(options.max_context, options.page_size);
  if (options.kv_pages == 0) options.kv_pages = options.max_batch * sequence_pages;
  Require(options.kv_pages >= 1 && options.kv_pages <= INT32_MAX / 2, "kv_pages is ",
          options.kv_pages, "; it must be 1 to ", INT32_MAX / 2);
  return options;
}

std::vector<int32_t> DecodeBuckets(int32_t max_batch) {
  constexpr int32_t kStep = 64;  // from the last of these on
  std::vector<int32_t> buckets;
  for (const int32_t bucket : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128}) {
    if (bucket < max_batch) buckets.push_back(bucket);
  }
  for (int32_t bucket = 128 + kStep; bucket < max_batch; bucket += kStep) {
    buckets.push_back(bucket);
  }
  buckets.push_back(max_batch);
  return buckets;
}

// The most that any projection asks for: workspaces grow with tokens and features.
int64_t LinearWorkspace(const ModelSpec& spec, DType dtype, int64_t max_tokens,
                        int64_t max_logit_rows) {
  static constexpr float kAnyWeight[1] = {};  // a norm takes workspace wherever its weight lies
  const auto bytes = [&](int64_t tokens, int64_t in, int64_t out, bool gated, bool norm) {
    return LinearWorkspaceBytes({.dtype = dtype,
                                 .gated_silu = gated,
                                 .num_tokens = tokens,
                                 .in_features = in,
                                 .out_features = out,
                                 .norm_weight = norm ? kAnyWeight : nullptr});
  };
  const int64_t hidden = spec.hidden_size;
  const int64_t qkv = RmsNormQkvWorkspaceBytes({.dtype = dtype,
                                                .num_tokens = max_tokens,
                                                .hidden_size = hidden,
                                                .num_q_heads = spec.num_q_heads,
                                                .num_kv_heads = spec.num_kv_heads,
                                                .head_dim = spec.head_dim,
                                                .norm_weight = kAnyWeight});
  return std::max({qkv, bytes(max_tokens, spec.QSize(), hidden, false, false),
                   bytes(max_tokens, hidden, spec.intermediate_size, true, true),
                   bytes(max_tokens, hidden, 2 * spec.intermediate_size, false, false),
                   bytes(max_tokens, spec.intermediate_size, hidden, false, false),
                   bytes(max_logit_rows, hidden, spec.vocab_size, false, true)});
}

}  // namespace

DecoderPlan::DecoderPlan(const ModelSpec& spec, const DecoderOptions& given,
                         const DeviceFacts& facts)
    : options(Resolve(spec, given)) {
  layout = {.num_pages = options.kv_pages,
            .num_kv_heads = spec.num_kv_heads,
            .page_size = options.page_size,
            .head_dim = spec.head_dim,
            .order = KvOrder::kHnd};
  if (Has(Ablation::kChunkDecode)) scratch_page = static_cast<int32_t>(layout.num_pages++);
  Validate(layout);
  max_pages = static_cast<int32_t>(DivideUp(options.max_context, options.page_size));
  if (OnDevice() && facts.sm_count > 0) decode_lanes = ChunkDecodeLanes(layout, facts);
  buckets = DecodeBuckets(options.max_batch);
  max_tokens = options.token_budget + options.max_batch;

  largest_step = DecodeShape(options.max_batch);
  largest_step.prefill = {.num_seqs = options.max_batch,
                          .num_tokens = options.token_budget,
                          .max_pages = int64_t{options.max_batch} * max_pages};
  if (Has(Ablation::kPagedPrefill)) {
    largest_step.prefill.kind = AttentionKind::kChunkDecode;
    largest_step.prefill.num_seqs = static_cast<int32_t>(options.token_budget);
    largest_step.prefill.max_pages = options.token_budget * max_pages;
    largest_step.prefill.num_lanes = decode_lanes;
  } else {
    largest_step.prefill.kind = AttentionKind::kPagedPrefill;
  }
  if (OnDevice()) {
    linear_workspace_bytes = LinearWorkspace(spec, options.dtype, max_tokens, options.max_batch);
    sampling_workspace_bytes = SamplingWorkspaceBytes(options.max_batch, spec.vocab_size);
  }
}

int32_t DecoderPlan::Bucket(int32_t rows) const { return *std::ranges::lower_bound(buckets, rows); }

StepShape DecoderPlan::DecodeShape(int32_t bucket) const {
  StepShape shape;
  shape.decode = {.kind = Has(Ablation::kChunkDecode) ? AttentionKind::kPagedPrefill
                                                      : AttentionKind::kChunkDecode,
                  .num_seqs = bucket,
                  .num_tokens = bucket,
                  .max_pages = int64_t{bucket} * max_pages,
                  .num_lanes = Has(Ablation::kChunkDecode) ? 0 : decode_lanes};
  shape.logit_rows = bucket;
  return shape;
}

MemoryPlan DecoderBuffers::Place(const ModelSpec& spec, const DecoderPlan& plan,
                                 const DeviceFacts& facts, std::byte* base) {
  const int64_t element = SizeOf(plan.options.dtype);
  const int64_t tokens = plan.max_tokens, batch = plan.options.max_batch;
  const int64_t q = spec.QSize(), kv_size = spec.KvSize(), hidden = spec.hidden_size;
  const bool split_mlp = plan.Has(Ablation::kFusedMlp);
  const bool split_norm = plan.Has(Ablation::kRmsNormQkv) || split_mlp;
  Carver carver(base);
  MemoryPlan memory;

  x = carver.TakeBytes(tokens * hidden * element);
  qkv = carver.TakeBytes(tokens * (q + 2 * kv_size) * element);
  attention = carver.TakeBytes(tokens * q * element);
  mlp = carver.TakeBytes(tokens * spec.intermediate_size * element);
  last = carver.TakeBytes(batch * hidden * element);
  normed = carver.TakeBytes(split_norm ? tokens * hidden * element : 0);
  gate_up = carver.TakeBytes(split_mlp ? tokens * 2 * spec.intermediate_size * element : 0);
  logits = carver.Take<float>(batch * spec.vocab_size);
  sampled = carver.Take<int32_t>(batch);
  memory.activation_bytes = carver.Size();

  linear_workspace = carver.TakeBytes(plan.linear_workspace_bytes);
  sampling_workspace = carver.TakeBytes(plan.sampling_workspace_bytes);
  const auto take_workspace = [&](int32_t num_seqs) {
    DecodeWorkspace workspace{.num_seqs = num_seqs};
    workspace.max_partials = ChunkDecodeMaxPartials(
        num_seqs, plan.layout, facts,
        {.batch_invariant = false, .share_chunks = false, .max_lanes = plan.decode_lanes});
    workspace.bytes =
        ChunkDecodeWorkspaceBytes(num_seqs, workspace.max_partials, spec.num_q_heads, plan.layout);
    workspace.data = carver.TakeBytes(workspace.bytes);
    return workspace;
  };
  decode_workspaces.clear();
  if (plan.decode_lanes > 0 && !plan.Has(Ablation::kChunkDecode)) {
    for (const int32_t bucket : plan.buckets) decode_workspaces.push_back(take_workspace(bucket));
  }
  if (plan.decode_lanes > 0 && plan.Has(Ablation::kPagedPrefill)) {
    prefill_workspace = take_workspace(plan.largest_step.prefill.num_seqs);
  }
  memory.workspace_bytes = carver.Size() - memory.activation_bytes;

  const int64_t before_tables = carver.Size();
  rope = carver.Take<float>(plan.options.max_context * spec.head_dim);
  step = carver.TakeBytes(PlaceStep(plan.largest_step, nullptr).bytes);
  memory.table_bytes = carver.Size() - before_tables;

  kv = carver.TakeBytes(spec.num_layers * plan.layout.NumElements() * element);
  memory.kv_bytes = spec.num_layers * plan.layout.NumElements() * element;
  return memory;
}

DecoderBuffers::DecoderBuffers(const ModelSpec& spec, const DecoderPlan& plan, Backend& backend) {
  MemoryPlan memory = Place(spec, plan, backend.facts(), nullptr);
  memory_ = backend.Allocate(memory.Total());
  Place(spec, plan, backend.facts(), memory_.data());
  const std::vector<float> table =
      MakeRopeTable(plan.options.max_context, spec.head_dim, spec.rope_theta);
  backend.Upload(rope, table.data(), static_cast<int64_t>(table.size() * sizeof(float)));
}

MemoryPlan PlanMemory(const ModelSpec& spec, const DecoderOptions& options,
                      const DeviceFacts& facts) {
  const DecoderPlan plan(spec, options, facts);
  MemoryPlan memory = DecoderBuffers().Place(spec, plan, facts, nullptr);
  memory.weight_bytes = DeviceWeights::Bytes(spec, options.dtype);
  return memory;
}

void RequireRoom(const MemoryPlan& plan, int64_t free_bytes) {
  if (plan.Total() <= free_bytes) return;
  throw RuntimeFailure(StrCat("device memory does not suffice: ", plan.Total(),
                              " bytes are needed (weights ", plan.weight_bytes, ", KV cache ",
                              plan.kv_bytes, ", activations ", plan.activation_bytes,
                              ", workspaces ", plan.workspace_bytes, ", tables ", plan.table_bytes,
                              "), ", free_bytes, " are free"));
}

}  // namespace tokline
