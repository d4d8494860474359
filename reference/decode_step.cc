// Runs the references of all ops of a step, layer by layer, over host memory.
#include "reference/decode_step.h"

#include <vector>

#include "reference/chunk_decode.h"
#include "reference/embedding.h"
#include "reference/kv_append.h"
#include "reference/linear.h"

namespace tokline {

void DecodeStepReference(const DecodeStepParams& params) {
  Validate(params);
  if (params.num_tokens == 0) return;
  const DecodeStepModel& model = params.model;
  const PagedKvLayout& layout = params.layout;
  const int64_t element = SizeOf(model.dtype), tokens = params.num_tokens;
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  const int64_t q = int64_t{model.num_q_heads} * layout.head_dim;
  const int64_t k = int64_t{layout.num_kv_heads} * layout.head_dim;
  const int64_t width = q + 2 * k;
  const auto buffer = [&](int64_t columns) {
    return std::vector<std::byte>(static_cast<size_t>(tokens * columns * element));
  };
  std::vector<std::byte> x = buffer(hidden), qkv = buffer(width), attention = buffer(q),
                         act = buffer(inner);
  EmbeddingReference({.dtype = model.dtype,
                      .num_tokens = tokens,
                      .vocab_size = model.vocab_size,
                      .hidden_size = hidden,
                      .token_ids = params.token_ids,
                      .table = model.embedding,
                      .out = x.data()});
  const auto project = [&](const void* from, int64_t in, const void* weight, void* to,
                           int64_t out) -> LinearParams {
    return {.dtype = model.dtype,
            .num_tokens = tokens,
            .in_features = in,
            .out_features = out,
            .x = from,
            .x_stride = in,
            .norm_eps = model.norm_eps,
            .weight = weight,
            .out = to,
            .out_stride = out};
  };
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    const auto of_layer = [&](const void* tensor) -> const void* {
      return tensor ? static_cast<const std::byte*>(tensor) + layer * model.layer_stride_bytes
                    : nullptr;
    };
    std::byte* const pool =
        static_cast<std::byte*>(params.kv) + layer * layout.NumElements() * element;
    LinearParams to_qkv = project(x.data(), hidden, of_layer(model.qkv), qkv.data(), width);
    to_qkv.norm_weight = of_layer(model.input_norm);
    to_qkv.bias = of_layer(model.qkv_bias);
    LinearReference(to_qkv);
    KvAppendReference({.dtype = model.dtype,
                       .num_tokens = tokens,
                       .num_q_heads = model.num_q_heads,
                       .layout = layout,
                       .q_in = qkv.data(),
                       .q_in_stride = width,
                       .q_out = qkv.data(),
                       .q_out_stride = width,
                       .k = qkv.data() + q * element,
                       .k_stride = width,
                       .v = qkv.data() + (q + k) * element,
                       .v_stride = width,
                       .kv = pool,
                       .slots = params.slots,
                       .q_norm_weight = of_layer(model.q_norm),
                       .k_norm_weight = of_layer(model.k_norm),
                       .norm_eps = model.norm_eps,
                       .positions = params.positions,
                       .rope_cos_sin = params.rope_cos_sin,
                       .rope_rows = params.rope_rows});
    ChunkDecodeReference({.dtype = model.dtype,
                          .num_q_heads = model.num_q_heads,
                          .scale = model.scale,
                          .layout = layout,
                          .table = params.table,
                          .q = qkv.data(),
                          .q_stride = width,
                          .kv = pool,
                          .out = attention.data(),
                          .out_stride = q});
    LinearParams to_mid = project(attention.data(), q, of_layer(model.o), x.data(), hidden);
    to_mid.residual = x.data();
    to_mid.residual_stride = hidden;
    LinearReference(to_mid);
    LinearParams to_act = project(x.data(), hidden, of_layer(model.gate_up), act.data(), inner);
    to_act.gated_silu = true;
    to_act.norm_weight = of_layer(model.post_norm);
    LinearReference(to_act);
    LinearParams to_out = project(act.data(), inner, of_layer(model.down), x.data(), hidden);
    to_out.residual = x.data();
    to_out.residual_stride = hidden;
    LinearReference(to_out);
  }
  LinearParams head = project(x.data(), hidden, model.lm_head, params.logits, model.vocab_size);
  head.norm_weight = model.final_norm;
  head.out_f32 = true;
  LinearReference(head);
}

}  // namespace tokline
