// A checkpoint's tensors in their roles. Host views into the mapped files: nothing is copied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/models/checkpoint.h"
#include "harness/models/model_spec.h"
#include "kernels/common/dtype.h"

namespace tokline {

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // row-major; of any alignment; null: the model has no such tensor
  int64_t bytes = 0;
};

// With H = hidden_size, I = intermediate_size, Q = num_q_heads * head_dim, K = num_kv_heads *
// head_dim. A matrix is [outputs, inputs].
struct LayerWeights {
  TensorView input_norm;  // [H]
  TensorView q;           // [Q, H]
  TensorView k;           // [K, H]
  TensorView v;           // [K, H]
  TensorView o;           // [H, Q]
  TensorView q_bias;      // [Q], null unless qkv_bias
  TensorView k_bias;      // [K], null unless qkv_bias
  TensorView v_bias;      // [K], null unless qkv_bias
  TensorView o_bias;      // [H], null unless output_bias
  TensorView q_norm;      // [head_dim], null unless qk_norm
  TensorView k_norm;      // [head_dim], null unless qk_norm
  TensorView post_norm;   // [H], before the MLP
  TensorView gate;        // [I, H]
  TensorView up;          // [I, H]
  TensorView down;        // [H, I]
};

struct ModelWeights {
  TensorView embedding;   // [vocab_size, H]
  TensorView final_norm;  // [H]
  TensorView lm_head;     // [vocab_size, H]; the embedding when tied
  std::vector<LayerWeights> layers;
  int64_t parameters = 0;                  // of the tensors above; a tied LM head counts once
  int64_t bytes = 0;                       // likewise
  std::vector<std::string> extra_tensors;  // in the checkpoint but in no role, sorted
};

// Finds every tensor that `spec` asks for and checks its dtype and shape. Throws RuntimeFailure
// naming the tensor, what it is and what it must be; also when the checkpoint has biases or layers
// that the spec denies. The views live as long as the checkpoint.
ModelWeights BindWeights(const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace tokline
