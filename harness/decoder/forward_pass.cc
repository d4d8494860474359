#include "harness/decoder/forward_pass.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/error.h"

namespace tokline {

struct ForwardPass::Rows {
  const AttentionShape& shape;
  const AttentionArrays& arrays;
  const AttentionWork& work;
  int64_t begin = 0;  // first row of the step
  const DecodeWorkspace* workspace = nullptr;
};

ForwardPass::ForwardPass(const ModelSpec& spec, const DecoderPlan& plan,
                         const DeviceWeights& weights, const DecoderBuffers& buffers,
                         Backend& backend)
    : spec_(spec),
      plan_(plan),
      weights_(weights),
      buffers_(buffers),
      backend_(backend),
      ops_(backend.ops()),
      dtype_(plan.options.dtype),
      element_bytes_(SizeOf(plan.options.dtype)),
      qkv_width_(spec.QSize() + 2 * spec.KvSize()),
      scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)))) {}

LaunchOptions ForwardPass::Next() {
  const bool dependent = !first_ && !plan_.Has(Ablation::kPdl);
  first_ = false;
  return {.stream = backend_.stream(), .dependent = dependent};
}

void ForwardPass::Enqueue(const StepWork& work) {
  const StepShape& shape = work.shape;
  const StepArrays arrays = PlaceStep(shape, buffers_.step);
  Rows decode{.shape = shape.decode, .arrays = arrays.decode, .work = work.decode};
  Rows prefill{.shape = shape.prefill,
               .arrays = arrays.prefill,
               .work = work.prefill,
               .begin = shape.decode.num_tokens};
  for (const DecodeWorkspace& workspace : buffers_.decode_workspaces) {
    if (workspace.num_seqs == shape.decode.num_seqs) decode.workspace = &workspace;
  }
  DecodeWorkspace any_number = buffers_.prefill_workspace;
  if (any_number.data != nullptr && shape.prefill.num_seqs > 0) {
    // Its layout moves with the number of sequences, so zeros of the last step are not where this
    // step needs them.
    any_number.num_seqs = shape.prefill.num_seqs;
    backend_.Zero(any_number.data, ChunkDecodeCounterBytes(any_number.num_seqs, plan_.layout));
    prefill.workspace = &any_number;
  }

  first_ = true;
  Embed(work, arrays);
  const int64_t pool_bytes = plan_.layout.NumElements() * element_bytes_;
  std::byte* kv = buffers_.kv;
  for (const DeviceLayerWeights& layer : weights_.layers()) {
    Projections(layer, kv, shape.Tokens(), arrays);
    Attention(decode, kv);
    Attention(prefill, kv);
    LinearParams output = Linear(shape.Tokens(), buffers_.attention, spec_.QSize(), layer.o,
                                 buffers_.x, spec_.hidden_size);
    output.bias = layer.o_bias;
    output.residual = buffers_.x;
    output.residual_stride = spec_.hidden_size;
    ops_.linear(output, Next());
    Mlp(layer, shape.Tokens());
    kv += pool_bytes;
  }
  if (shape.logit_rows > 0) Logits(shape, arrays);
}

void ForwardPass::Embed(const StepWork& work, const StepArrays& arrays) {
  EmbeddingParams params{.dtype = dtype_,
                         .num_tokens = work.shape.decode.num_tokens,
                         .vocab_size = spec_.vocab_size,
                         .hidden_size = spec_.hidden_size,
                         .token_ids = buffers_.sampled,
                         .table = weights_.embedding(),
                         .out = buffers_.x};
  if (params.num_tokens > 0) ops_.embedding(params, Next());
  params.out = buffers_.x + params.num_tokens * spec_.hidden_size * element_bytes_;
  params.num_tokens = work.shape.prefill.num_tokens;
  params.token_ids = arrays.prefill_ids;
  if (params.num_tokens > 0) ops_.embedding(params, Next());
}

void ForwardPass::Projections(const DeviceLayerWeights& layer, std::byte* kv, int64_t tokens,
                              const StepArrays& arrays) {
  RmsNormQkvParams params{.dtype = dtype_,
                          .variant = plan_.Has(Ablation::kSkinny) ? RmsNormQkvVariant::kMatmul
                                                                  : RmsNormQkvVariant::kAuto,
                          .num_tokens = tokens,
                          .hidden_size = spec_.hidden_size,
                          .num_q_heads = spec_.num_q_heads,
                          .num_kv_heads = spec_.num_kv_heads,
                          .head_dim = spec_.head_dim,
                          .x = buffers_.x,
                          .x_stride = spec_.hidden_size,
                          .norm_weight = layer.input_norm,
                          .norm_eps = spec_.norm_eps,
                          .weight = layer.qkv,
                          .bias = layer.qkv_bias,
                          .qkv = buffers_.qkv,
                          .qkv_stride = qkv_width_,
                          .append = true,
                          .append_params = {.layout = plan_.layout,
                                            .kv = kv,
                                            .slots = arrays.slots,
                                            .q_norm_weight = layer.q_norm,
                                            .k_norm_weight = layer.k_norm,
                                            .norm_eps = spec_.norm_eps,
                                            .positions = arrays.positions,
                                            .rope_cos_sin = buffers_.rope,
                                            .rope_rows = plan_.options.max_context},
                          .matmul = backend_.matmul(),
                          .workspace = buffers_.linear_workspace,
                          .workspace_bytes = plan_.linear_workspace_bytes};
  const KvAppendParams append = AppendOf(params);
  const bool split_norm = plan_.Has(Ablation::kRmsNormQkv);
  const bool split_append = plan_.Has(Ablation::kKvAppend);
  if (split_norm) {
    ops_.rmsnorm({.dtype = dtype_,
                  .num_tokens = tokens,
                  .hidden_size = spec_.hidden_size,
                  .eps = spec_.norm_eps,
                  .x = buffers_.x,
                  .x_stride = spec_.hidden_size,
                  .weight = layer.input_norm,
                  .out = buffers_.normed,
                  .out_stride = spec_.hidden_size},
                 Next());
    LinearParams linear =
        Linear(tokens, buffers_.normed, spec_.hidden_size, layer.qkv, buffers_.qkv, qkv_width_);
    linear.bias = layer.qkv_bias;
    ops_.linear(linear, Next());
  } else {
    params.append = !split_append;
    ops_.rmsnorm_qkv(params, Next());
  }
  if (split_append) {
    AppendWithSeparateNorms(append);
  } else if (split_norm) {
    ops_.kv_append(append, Next());
  }
}

void ForwardPass::AppendWithSeparateNorms(KvAppendParams params) {
  const auto norm_heads = [&](std::byte* first, int32_t heads, const void* weight) {
    for (int32_t head = 0; weight != nullptr && head < heads; ++head) {
      std::byte* rows = first + int64_t{head} * spec_.head_dim * element_bytes_;
      ops_.rmsnorm({.dtype = dtype_,
                    .num_tokens = params.num_tokens,
                    .hidden_size = spec_.head_dim,
                    .eps = spec_.norm_eps,
                    .x = rows,
                    .x_stride = qkv_width_,
                    .weight = weight,
                    .out = rows,
                    .out_stride = qkv_width_},
                   Next());
    }
  };
  norm_heads(buffers_.qkv, spec_.num_q_heads, params.q_norm_weight);
  norm_heads(buffers_.qkv + spec_.QSize() * element_bytes_, spec_.num_kv_heads,
             params.k_norm_weight);
  params.q_norm_weight = nullptr;
  params.k_norm_weight = nullptr;
  ops_.kv_append(params, Next());
}

void ForwardPass::Attention(const Rows& rows, const std::byte* kv) {
  const AttentionShape& shape = rows.shape;
  if (shape.num_tokens == 0) return;
  const std::byte* q = buffers_.qkv + rows.begin * qkv_width_ * element_bytes_;
  std::byte* out = buffers_.attention + rows.begin * spec_.QSize() * element_bytes_;
  if (shape.kind == AttentionKind::kPagedPrefill) {
    ops_.paged_prefill({.dtype = dtype_,
                        .num_q_heads = spec_.num_q_heads,
                        .causal = true,
                        .scale = scale_,
                        .layout = plan_.layout,
                        .table = rows.arrays.Table(shape),
                        .total_tokens = shape.num_tokens,
                        .q_indptr = rows.arrays.q_indptr,
                        .q = q,
                        .q_stride = qkv_width_,
                        .kv = kv,
                        .out = out,
                        .out_stride = spec_.QSize(),
                        .tile_tokens = rows.work.tile_tokens,
                        .num_tiles = rows.work.num_tiles,
                        .tiles = rows.arrays.tiles},
                       Next());
    return;
  }
  ChunkDecodeParams params{.dtype = dtype_,
                           .num_q_heads = spec_.num_q_heads,
                           .scale = scale_,
                           .layout = plan_.layout,
                           .table = rows.arrays.Table(shape),
                           .q = q,
                           .q_stride = qkv_width_,
                           .kv = kv,
                           .out = out,
                           .out_stride = spec_.QSize()};
  if (rows.workspace != nullptr) {
    params.plan = {.num_lanes = shape.num_lanes,
                   .max_partials = rows.workspace->max_partials,
                   .lane_task_indptr = rows.arrays.lane_task_indptr,
                   .tasks = rows.arrays.tasks,
                   .ranges = rows.arrays.ranges,
                   .members = rows.arrays.members,
                   .seq_partial_indptr = rows.arrays.seq_partial_indptr};
    params.workspace = rows.workspace->data;
    params.workspace_bytes = rows.workspace->bytes;
  }
  ops_.chunk_decode(params, Next());
}

void ForwardPass::Mlp(const DeviceLayerWeights& layer, int64_t tokens) {
  const int64_t hidden = spec_.hidden_size, inner = spec_.intermediate_size;
  if (plan_.Has(Ablation::kFusedMlp)) {
    ops_.rmsnorm({.dtype = dtype_,
                  .num_tokens = tokens,
                  .hidden_size = hidden,
                  .eps = spec_.norm_eps,
                  .x = buffers_.x,
                  .x_stride = hidden,
                  .weight = layer.post_norm,
                  .out = buffers_.normed,
                  .out_stride = hidden},
                 Next());
    ops_.linear(Linear(tokens, buffers_.normed, hidden, layer.gate_up, buffers_.gate_up, 2 * inner),
                Next());
    ops_.silu_mul({.dtype = dtype_,
                   .num_tokens = tokens,
                   .intermediate_size = inner,
                   .gate_up = buffers_.gate_up,
                   .gate_up_stride = 2 * inner,
                   .out = buffers_.mlp,
                   .out_stride = inner},
                  Next());
  } else {
    LinearParams gate_up = Linear(tokens, buffers_.x, hidden, layer.gate_up, buffers_.mlp, inner);
    gate_up.gated_silu = true;
    gate_up.norm_weight = layer.post_norm;
    gate_up.norm_eps = spec_.norm_eps;
    ops_.linear(gate_up, Next());
  }
  LinearParams down = Linear(tokens, buffers_.mlp, inner, layer.down, buffers_.x, hidden);
  down.residual = buffers_.x;
  down.residual_stride = hidden;
  ops_.linear(down, Next());
}

void ForwardPass::Logits(const StepShape& shape, const StepArrays& arrays) {
  const std::byte* rows = buffers_.x;
  if (shape.prefill.num_tokens > 0) {
    // Collecting the last row of each sequence is a lookup with rows as the table.
    ops_.embedding({.dtype = dtype_,
                    .num_tokens = shape.logit_rows,
                    .vocab_size = shape.Tokens(),
                    .hidden_size = spec_.hidden_size,
                    .token_ids = arrays.logit_tokens,
                    .table = buffers_.x,
                    .out = buffers_.last},
                   Next());
    rows = buffers_.last;
  }
  LinearParams head = Linear(shape.logit_rows, rows, spec_.hidden_size, weights_.lm_head(),
                             buffers_.logits, spec_.vocab_size);
  head.out_f32 = true;
  head.norm_weight = weights_.final_norm();
  head.norm_eps = spec_.norm_eps;
  ops_.linear(head, Next());
  ops_.sampling({.num_rows = shape.logit_rows,
                 .vocab_size = spec_.vocab_size,
                 .logits = buffers_.logits,
                 .logits_stride = spec_.vocab_size,
                 .rules = arrays.rules,
                 .tokens = buffers_.sampled,
                 .workspace = buffers_.sampling_workspace,
                 .workspace_bytes = plan_.sampling_workspace_bytes},
                Next());
}

LinearParams ForwardPass::Linear(int64_t tokens, const std::byte* x, int64_t in_features,
                                 const std::byte* weight, void* out, int64_t out_features) const {
  return {.dtype = dtype_,
          .variant = plan_.Has(Ablation::kSkinny) ? LinearVariant::kMatmul : LinearVariant::kAuto,
          .num_tokens = tokens,
          .in_features = in_features,
          .out_features = out_features,
          .x = x,
          .x_stride = in_features,
          .weight = weight,
          .out = out,
          .out_stride = out_features,
          .matmul = backend_.matmul(),
          .workspace = buffers_.linear_workspace,
          .workspace_bytes = plan_.linear_workspace_bytes};
}

}  // namespace tokline
