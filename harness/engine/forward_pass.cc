// Enqueues the ops of a step in order, each with its parameters, fused or separate by ablation.
#include "harness/engine/forward_pass.h"

#include "harness/engine/one_kernel_step.h"

namespace tokline {

ForwardPass::ForwardPass(const DecoderConfig& config, const DeviceWeights& weights,
                         const DecoderBuffers& buffers, Backend& backend)
    : config_(config),
      spec_(config.shard.local),
      weights_(weights),
      buffers_(buffers),
      backend_(backend),
      ops_(backend.ops()),
      dtype_(config.options.dtype),
      element_bytes_(SizeOf(config.options.dtype)),
      qkv_width_(spec_.QSize() + 2 * spec_.KvSize()),
      scale_(spec_.ScoreScale()) {}

LaunchOptions ForwardPass::Next() {
  const bool dependent = !first_ && !config_.Ablates(Ablation::kPdl);
  first_ = false;
  return {.stream = backend_.stream(), .dependent = dependent};
}

template <typename Params>
void ForwardPass::Run(StepOp op, Op<Params> launch, const std::type_identity_t<Params>& params) {
  RunWith<Params>(launch, op, params);
}

template <typename Params, typename Launch>
void ForwardPass::RunWith(const Launch& launch, StepOp op, const Params& params) {
  if (!Wants(op)) return;
  if (observer_ != nullptr) observer_->Begin(op, KernelName(params));
  launch(params, Next());
  const std::optional<DelayedOp>& delayed = config_.options.delayed;
  if (delayed && delayed->op == op) delayed->delay(Next());
  if (observer_ != nullptr) observer_->End();
}

void ForwardPass::Enqueue(const StepShape& shape) {
  const StepArrays arrays = PlaceStep(shape, buffers_.step);
  const DecodeWorkspace* decode_workspace = nullptr;
  for (const DecodeWorkspace& workspace : buffers_.decode_workspaces) {
    if (workspace.num_seqs == shape.decode.num_seqs) decode_workspace = &workspace;
  }
  DecodeWorkspace any_number = buffers_.prefill_workspace;
  const DecodeWorkspace* prefill_workspace = nullptr;
  if (any_number.data != nullptr && shape.prefill.num_seqs > 0) {
    // The layout depends on the number of sequences, so the zeros that the last step left are in
    // other places than this step needs.
    any_number.num_seqs = shape.prefill.num_seqs;
    backend_.Zero(any_number.data, ChunkDecodeCounterBytes(any_number.num_seqs, config_.layout));
    prefill_workspace = &any_number;
  }

  first_ = true;
  x_squares_ = nullptr;
  normed_ = nullptr;
  if (shape.one_kernel) {
    OneKernel(shape, arrays);
    return;
  }
  Embed(shape, arrays);
  const int64_t pool_bytes = config_.layout.NumElements() * element_bytes_;
  std::byte* kv = buffers_.kv;
  const std::vector<DeviceLayerWeights>& layers = weights_.layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayerWeights& layer = layers[i];
    Projections(layer, kv, shape.Tokens(), arrays);
    Attention(shape.decode, arrays.decode, 0, decode_workspace, kv, true);
    Attention(shape.prefill, arrays.prefill, shape.decode.num_tokens, prefill_workspace, kv, false);
    LinearParams output = Linear(shape.Tokens(), buffers_.attention, spec_.QSize(), layer.o,
                                 buffers_.x, spec_.hidden_size);
    output.bias = layer.o_bias;
    AddToStream(StepOp::kAttentionOutput, output, config_.split_mlp ? nullptr : layer.post_norm);
    Mlp(layer, i + 1 < layers.size() ? &layers[i + 1] : nullptr, shape.Tokens());
    kv += pool_bytes;
  }
  if (shape.logit_rows > 0) Logits(shape, arrays);
}

void ForwardPass::OneKernel(const StepShape& shape, const StepArrays& arrays) {
  Run(StepOp::kDecodeStep, ops_.decode_step,
      {.model = StepModelOf(spec_, dtype_, &weights_),
       .num_tokens = shape.decode.num_tokens,
       .token_ids = buffers_.sampled,
       .positions = arrays.positions,
       .slots = arrays.slots,
       .table = arrays.decode.Table(shape.decode),
       .layout = config_.layout,
       .kv = buffers_.kv,
       .rope_cos_sin = buffers_.rope,
       .rope_rows = config_.options.max_context,
       .logits = buffers_.logits,
       .parts = arrays.parts,
       .workspace = buffers_.decode_step_workspace,
       .workspace_bytes = buffers_.decode_step_workspace_bytes,
       .stamps = observer_ == nullptr ? nullptr : observer_->PhaseStamps()});
  Sample(shape, arrays, /*best_parts=*/0);
}

void ForwardPass::Embed(const StepShape& shape, const StepArrays& arrays) {
  EmbeddingParams params{.dtype = dtype_,
                         .num_tokens = shape.decode.num_tokens,
                         .vocab_size = spec_.vocab_size,
                         .hidden_size = spec_.hidden_size,
                         .first_id = config_.shard.vocabulary.begin,
                         .token_ids = buffers_.sampled,
                         .table = weights_.embedding(),
                         .num_positions = weights_.positions() ? spec_.max_positions : 0,
                         .positions = arrays.positions,
                         .position_table = weights_.positions(),
                         .out = config_.Divided() ? buffers_.partial : buffers_.x};
  if (params.num_tokens > 0) Run(StepOp::kEmbedding, ops_.embedding, params);
  params.out =
      static_cast<std::byte*>(params.out) + params.num_tokens * spec_.hidden_size * element_bytes_;
  params.positions += params.num_tokens;
  params.num_tokens = shape.prefill.num_tokens;
  params.token_ids = arrays.prefill_ids;
  if (params.num_tokens > 0) Run(StepOp::kEmbedding, ops_.embedding, params);
  if (config_.Divided()) {
    AllReduce(SumOf(shape.Tokens(), nullptr,
                    config_.split_input_norm ? nullptr : weights_.layers()[0].input_norm));
  }
}

void ForwardPass::Norm(StepOp op, int64_t tokens, const std::byte* x, const std::byte* weight,
                       const std::byte* bias) {
  Run(op, ops_.norm,
      {.kind = spec_.norm,
       .dtype = dtype_,
       .num_tokens = tokens,
       .hidden_size = spec_.hidden_size,
       .eps = spec_.norm_eps,
       .x = x,
       .x_stride = spec_.hidden_size,
       .weight = weight,
       .bias = bias,
       .out = buffers_.normed,
       .out_stride = spec_.hidden_size});
}

void ForwardPass::Projections(const DeviceLayerWeights& layer, std::byte* kv, int64_t tokens,
                              const StepArrays& arrays) {
  LinearParams projection =
      Linear(tokens, buffers_.x, spec_.hidden_size, layer.qkv, buffers_.qkv, qkv_width_);
  projection.bias = layer.qkv_bias;
  const KvAppendParams append =
      AppendOf(projection, {.num_q_heads = spec_.num_q_heads,
                            .layout = config_.layout,
                            .kv = kv,
                            .slots = arrays.slots,
                            .q_norm_weight = layer.q_norm,
                            .k_norm_weight = layer.k_norm,
                            .norm_eps = spec_.norm_eps,
                            .positions = arrays.positions,
                            .rope_cos_sin = buffers_.rope,
                            .rope_rows = buffers_.rope ? config_.options.max_context : 0});
  const bool split_append = config_.Ablates(Ablation::kKvAppend);
  if (config_.split_input_norm) {
    Norm(StepOp::kInputNorm, tokens, buffers_.x, layer.input_norm, layer.input_norm_bias);
    projection.x = buffers_.normed;
    Run(StepOp::kQkv, ops_.linear, projection);
  } else {
    ReadNormed(projection, layer.input_norm);
    RmsNormQkvParams params{.projection = projection};
    if (!split_append) params.append = append;
    Run(StepOp::kQkv, ops_.rmsnorm_qkv, params);
  }
  if (split_append) {
    AppendWithSeparateNorms(append);
  } else if (config_.split_input_norm) {
    Run(StepOp::kKvAppend, ops_.kv_append, append);
  }
}

void ForwardPass::AppendWithSeparateNorms(KvAppendParams params) {
  const auto norm_heads = [&](std::byte* first, int32_t heads, const void* weight) {
    for (int32_t head = 0; weight != nullptr && head < heads; ++head) {
      std::byte* rows = first + int64_t{head} * spec_.head_dim * element_bytes_;
      Run(StepOp::kHeadNorms, ops_.norm,
          {.dtype = dtype_,
           .num_tokens = params.num_tokens,
           .hidden_size = spec_.head_dim,
           .eps = spec_.norm_eps,
           .x = rows,
           .x_stride = qkv_width_,
           .weight = weight,
           .out = rows,
           .out_stride = qkv_width_});
    }
  };
  norm_heads(buffers_.qkv, spec_.num_q_heads, params.q_norm_weight);
  norm_heads(buffers_.qkv + spec_.QSize() * element_bytes_, spec_.num_kv_heads,
             params.k_norm_weight);
  params.q_norm_weight = nullptr;
  params.k_norm_weight = nullptr;
  Run(StepOp::kKvAppend, ops_.kv_append, params);
}

void ForwardPass::Attention(const AttentionShape& shape, const AttentionArrays& arrays,
                            int64_t begin, const DecodeWorkspace* workspace, const std::byte* kv,
                            bool decodes) {
  if (shape.num_tokens == 0) return;
  const std::byte* q = buffers_.qkv + begin * qkv_width_ * element_bytes_;
  std::byte* out = buffers_.attention + begin * spec_.QSize() * element_bytes_;
  switch (shape.kind) {
    case AttentionKind::kPagedPrefill:
      Run(StepOp::kPagedPrefill, ops_.paged_prefill,
          {.dtype = dtype_,
           .num_q_heads = spec_.num_q_heads,
           .causal = true,
           .scale = scale_,
           .layout = config_.layout,
           .table = arrays.Table(shape),
           .total_tokens = shape.num_tokens,
           .q_indptr = arrays.q_indptr,
           .q = q,
           .q_stride = qkv_width_,
           .kv = kv,
           .out = out,
           .out_stride = spec_.QSize(),
           .variant = config_.Ablates(Ablation::kHopper) ? PagedPrefillVariant::kPortable
                                                         : PagedPrefillVariant::kAuto,
           .tile_tokens = shape.tile_tokens,
           .num_blocks = shape.num_blocks,
           .num_tiles = shape.num_tiles,
           .tiles = arrays.tiles,
           .num_parts = shape.num_parts,
           .parts = arrays.parts,
           .workspace = buffers_.prefill_parts,
           .workspace_bytes = buffers_.prefill_parts_bytes});
      break;
    case AttentionKind::kChunkDecode: {
      ChunkDecodeParams params{.dtype = dtype_,
                               .num_q_heads = spec_.num_q_heads,
                               .scale = scale_,
                               .layout = config_.layout,
                               .table = arrays.Table(shape),
                               .q = q,
                               .q_stride = qkv_width_,
                               .kv = kv,
                               .out = out,
                               .out_stride = spec_.QSize(),
                               .only_last_is_new = decodes};
      if (workspace != nullptr) {
        params.plan = DecodeRoomOf(shape).View(arrays.plan);
        params.workspace = workspace->data;
        params.workspace_bytes = workspace->bytes;
        params.max_partials = workspace->max_partials;
      }
      Run(StepOp::kChunkDecode, ops_.chunk_decode, params);
      break;
    }
  }
}

void ForwardPass::SplitMlp(const DeviceLayerWeights& layer, int64_t tokens) {
  const int64_t hidden = spec_.hidden_size, inner = spec_.intermediate_size;
  const bool gated = spec_.mlp == ActivationKind::kGatedSilu;
  std::byte* const product = gated ? buffers_.gate_up : buffers_.mlp;
  Norm(StepOp::kPostNorm, tokens, buffers_.x, layer.post_norm, layer.post_norm_bias);
  LinearParams up = Linear(tokens, buffers_.normed, hidden, layer.up, product, spec_.UpRows());
  up.bias = layer.up_bias;
  Run(gated ? StepOp::kGateUp : StepOp::kUp, ops_.linear, up);
  Run(StepOp::kActivation, ops_.activation,
      {.kind = spec_.mlp,
       .dtype = dtype_,
       .num_tokens = tokens,
       .intermediate_size = inner,
       .x = product,
       .x_stride = spec_.UpRows(),
       .out = buffers_.mlp,
       .out_stride = inner});
}

void ForwardPass::Mlp(const DeviceLayerWeights& layer, const DeviceLayerWeights* next,
                      int64_t tokens) {
  const int64_t hidden = spec_.hidden_size, inner = spec_.intermediate_size;
  if (config_.split_mlp) {
    SplitMlp(layer, tokens);
  } else {
    LinearParams gate_up = Linear(tokens, buffers_.x, hidden, layer.up, buffers_.mlp, inner);
    gate_up.gated_silu = true;
    ReadNormed(gate_up, layer.post_norm);
    gate_up.bias = layer.up_bias;
    Prefetch(StepOp::kDown, layer.down, hidden * inner, gate_up);
    Run(StepOp::kGateUp, ops_.linear, gate_up);
  }
  LinearParams down = Linear(tokens, buffers_.mlp, inner, layer.down, buffers_.x, hidden);
  down.bias = layer.down_bias;
  if (next != nullptr) Prefetch(StepOp::kQkv, next->qkv, qkv_width_ * hidden, down);
  const bool split = next != nullptr ? config_.split_input_norm : config_.split_final_norm;
  const std::byte* const norm = next != nullptr ? next->input_norm : weights_.final_norm();
  AddToStream(StepOp::kDown, down, split ? nullptr : norm);
}

void ForwardPass::AddToStream(StepOp op, LinearParams params, const std::byte* next_norm) {
  if (config_.Divided()) {
    params.out = buffers_.partial;
    AllReduceNormParams sum = SumOf(params.num_tokens, buffers_.x, next_norm);
    sum.sent = Sends(op, params, sum);
    if (sum.sent) params.send = backend_.Peers();
    Run(op, ops_.linear, params);
    AllReduce(sum);
    return;
  }
  params.residual = buffers_.x;
  params.residual_stride = spec_.hidden_size;
  SumSquares(params);
  Run(op, ops_.linear, params);
}

bool ForwardPass::Sends(StepOp op, const LinearParams& params, AllReduceNormParams sum) const {
  const PeerBuffers* const peers = backend_.Peers();
  if (peers == nullptr || config_.Ablates(Ablation::kSend)) return false;
  if (!Wants(op) || !Wants(StepOp::kAllReduce)) return false;
  // The sum would begin before the delay.
  const std::optional<DelayedOp>& delayed = config_.options.delayed;
  if (delayed && delayed->op == op) return false;
  // Ranks that have unequal parts may run different kernels, and not all of them send.
  const ModelSpec& whole = config_.shard.whole;
  const int64_t features = op == StepOp::kDown ? whole.intermediate_size : whole.QSize();
  if (params.in_features * config_.shard.world_size != features) return false;
  sum.peers = *peers;
  return TakesSentPartials(sum) && LinearSends(params, backend_.facts());
}

AllReduceNormParams ForwardPass::SumOf(int64_t tokens, const std::byte* residual,
                                       const std::byte* next_norm) const {
  const int64_t hidden = spec_.hidden_size;
  AllReduceNormParams params{.dtype = dtype_,
                             .num_tokens = tokens,
                             .hidden_size = hidden,
                             .eps = spec_.norm_eps,
                             .partial_stride = hidden,
                             .residual = residual,
                             .residual_stride = hidden,
                             .weight = next_norm,
                             .residual_out = buffers_.x,
                             .residual_out_stride = hidden,
                             .out = next_norm == nullptr ? nullptr : buffers_.normed,
                             .out_stride = hidden};
  params.partials[config_.shard.rank] = buffers_.partial;
  return params;
}

void ForwardPass::AllReduce(const AllReduceNormParams& params) {
  normed_ = params.weight == nullptr ? nullptr : buffers_.normed;
  RunWith([this](const AllReduceNormParams& sum,
                 const LaunchOptions& options) { backend_.AllReduceNorm(sum, options); },
          StepOp::kAllReduce, params);
}

void ForwardPass::Logits(const StepShape& shape, const StepArrays& arrays) {
  const std::byte* rows = normed_ != nullptr ? normed_ : buffers_.x;
  if (shape.prefill.num_tokens > 0) {
    // Collecting the last row of each sequence is a lookup in a table of rows.
    Run(StepOp::kLastRows, ops_.embedding,
        {.dtype = dtype_,
         .num_tokens = shape.logit_rows,
         .vocab_size = shape.Tokens(),
         .hidden_size = spec_.hidden_size,
         .token_ids = arrays.logit_tokens,
         .table = rows,
         .out = buffers_.last});
    rows = buffers_.last;
  }
  if (config_.split_final_norm) {
    Norm(StepOp::kFinalNorm, shape.logit_rows, rows, weights_.final_norm(),
         weights_.final_norm_bias());
    rows = buffers_.normed;
  }
  const ShardRange& vocabulary = config_.shard.vocabulary;
  LinearParams head = Linear(shape.logit_rows, rows, spec_.hidden_size, weights_.lm_head(),
                             buffers_.logits + vocabulary.begin, vocabulary.count);
  head.out_stride = config_.shard.whole.vocab_size;
  head.out_f32 = true;
  const bool normed = config_.split_final_norm || normed_ != nullptr;
  head.norm_weight = normed ? nullptr : weights_.final_norm();
  head.norm_eps = spec_.norm_eps;
  // A rank that has only a part of the vocabulary does not know the overall largest logit.
  const int32_t parts = config_.Divided() ? 0 : LinearBestParts(head, backend_.facts());
  if (parts > 0) {
    head.best = buffers_.best;
    head.only_best = arrays.only_best;
  }
  Run(StepOp::kLmHead, ops_.linear, head);
  if (config_.Divided()) {
    RunWith([this](const ColumnGather& gather,
                   const LaunchOptions&) { backend_.GatherColumns(gather); },
            StepOp::kGatherLogits,
            ColumnGather{.matrix = buffers_.logits,
                         .rows = shape.logit_rows,
                         .stride = config_.shard.whole.vocab_size,
                         .begin = vocabulary.begin,
                         .columns = vocabulary.count});
    first_ = true;  // a kernel cannot start before a copy has ended
  }
  Sample(shape, arrays, parts);
}

void ForwardPass::Sample(const StepShape& shape, const StepArrays& arrays, int32_t best_parts) {
  Run(StepOp::kSampling, ops_.sampling,
      {.num_rows = shape.logit_rows,
       .vocab_size = config_.shard.whole.vocab_size,
       .logits = buffers_.logits,
       .logits_stride = config_.shard.whole.vocab_size,
       .rules = arrays.rules,
       .best = best_parts > 0 ? buffers_.best : nullptr,
       .best_parts = best_parts,
       .tokens = buffers_.sampled,
       .workspace = buffers_.sampling_workspace,
       .workspace_bytes = config_.sampling_workspace_bytes});
}

bool ForwardPass::Wants(StepOp op) const { return observer_ == nullptr || observer_->Wants(op); }

void ForwardPass::Prefetch(StepOp op, const std::byte* weight, int64_t elements,
                           LinearParams& params) const {
  if (weight == nullptr || config_.Ablates(Ablation::kPrefetch)) return;
  if (observer_ != nullptr && !observer_->Prefetches(op)) return;
  const int64_t bytes = elements * element_bytes_;
  if (bytes > backend_.facts().l2_bytes / 4) return;
  params.prefetch = weight;
  params.prefetch_bytes = bytes;
}

void ForwardPass::ReadNormed(LinearParams& params, const std::byte* weight) const {
  if (normed_ != nullptr) {
    params.x = normed_;
    return;
  }
  params.norm_weight = weight;
  params.norm_eps = spec_.norm_eps;
  params.x_squares = x_squares_;
}

void ForwardPass::SumSquares(LinearParams& params) {
  x_squares_ = nullptr;
  if (!LinearLeavesSquares(params, backend_.facts())) return;
  params.out_squares = buffers_.x_squares;
  x_squares_ = buffers_.x_squares;
}

LinearParams ForwardPass::Linear(int64_t tokens, const std::byte* x, int64_t in_features,
                                 const std::byte* weight, void* out, int64_t out_features) const {
  return {
      .dtype = dtype_,
      .variant = config_.Ablates(Ablation::kSkinny) ? LinearVariant::kMatmul : LinearVariant::kAuto,
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
      .workspace_bytes = config_.linear_workspace_bytes};
}

}  // namespace tokline
