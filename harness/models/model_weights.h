// A checkpoint's tensors, bound to their roles in the model. These are host views into the mapped
// files; nothing is copied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "kernels/common/dtype.h"

namespace tokline {

// A vector is a matrix with one column.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // may be unaligned; null if the model has no such tensor
  int64_t bytes = 0;           // size of its elements
  int64_t row_stride = 0;      // in elements
  int64_t column_stride = 0;

  int64_t Rows() const { return shape.empty() ? 0 : shape[0]; }
  int64_t Columns() const { return shape.size() == 2 ? shape[1] : 1; }
};

// The shapes use H = hidden_size, I = intermediate_size, Q = num_q_heads * head_dim and K =
// num_kv_heads * head_dim. A matrix is viewed as [outputs, inputs] even if the checkpoint stores it
// transposed.
struct LayerWeights {
  TensorView input_norm;       // [H]
  TensorView input_norm_bias;  // [H], null unless NormKind::kLayer
  TensorView q;                // [Q, H]
  TensorView k;                // [K, H]
  TensorView v;                // [K, H]
  TensorView o;                // [H, Q]
  TensorView q_bias;           // [Q], null unless qkv_bias
  TensorView k_bias;           // [K], null unless qkv_bias
  TensorView v_bias;           // [K], null unless qkv_bias
  TensorView o_bias;           // [H], null unless output_bias
  TensorView q_norm;           // [head_dim], null unless qk_norm
  TensorView k_norm;           // [head_dim], null unless qk_norm
  TensorView post_norm;        // [H], before the MLP
  TensorView post_norm_bias;   // [H], null unless NormKind::kLayer
  TensorView gate;             // [I, H], null unless the MLP is gated
  TensorView up;               // [I, H]
  TensorView down;             // [H, I]
  TensorView gate_bias;        // [I], null unless mlp_bias and the MLP is gated
  TensorView up_bias;          // [I], null unless mlp_bias
  TensorView down_bias;        // [H], null unless mlp_bias
};

struct ModelWeights {
  TensorView embedding;        // [vocab_size, H]
  TensorView positions;        // [max_positions, H], null unless PositionKind::kLearned
  TensorView final_norm;       // [H]
  TensorView final_norm_bias;  // [H], null unless NormKind::kLayer
  TensorView lm_head;          // [vocab_size, H]; the embedding when tied
  std::vector<LayerWeights> layers;
  // If set, there are no tensors: all weights are drawn from this seed (RandomWeights).
  std::optional<uint64_t> random_seed;
  int64_t parameters = 0;                  // in the tensors above; a tied LM head counts once
  int64_t bytes = 0;                       // size of the same tensors
  std::vector<std::string> extra_tensors;  // without a role and not a known buffer, sorted
  std::vector<std::string> known_buffers;  // safe to ignore (known_buffers.h), sorted
  std::string spare_lm_head;  // the extra tensor that a tied model stores; empty if it stores none
};

// Finds every tensor that `spec` requires and checks its dtype and shape; F32, BF16 and F16 may be
// mixed. Throws RuntimeFailure naming the tensor, what it is and what it must be, or listing the
// missing ones. It also throws if the checkpoint has biases or layers that `spec` excludes, or an
// LM head whose dtype or shape differs from the embedding's although they are tied. The views live
// as long as the checkpoint.
ModelWeights BindWeights(const Checkpoint& checkpoint, const ModelSpec& spec);

// Reads every weight once, with several threads. Throws RuntimeFailure with the name of a tensor
// that has NaN or infinite elements, or of an LM head that is stored although the embeddings are
// tied and that differs from the embedding: transformers 5 then uses the head, and transformers 4
// the embedding, so neither would be right for everyone.
void CheckElements(const Checkpoint& checkpoint, const ModelWeights& weights);

// The weights of a model for which only config.json exists. The decoder draws them on its device.
ModelWeights RandomWeights(const ModelSpec& spec, uint64_t seed);

// The number of parameters of a model; a tied LM head counts once.
int64_t ParametersOf(const ModelSpec& spec);

}  // namespace tokline
