// Small models of every family with 8 query heads and random weights, which 2, 4 and 8 ranks can
// divide.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"

namespace tokline::testing {

// A model with 8 query heads and random weights in fp32.
class DrawnModel {
 public:
  explicit DrawnModel(const ModelSpec& model) : spec(model) {
    const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size;
    const int64_t q = spec.QSize(), kv = spec.KvSize();
    const bool layer_norm = spec.norm == NormKind::kLayer;
    weights.embedding = Matrix(spec.vocab_size, hidden);
    if (spec.position == PositionKind::kLearned) {
      weights.positions = Matrix(spec.max_positions, hidden);
    }
    weights.final_norm = Vector(true, hidden);
    weights.final_norm_bias = Vector(layer_norm, hidden);
    weights.lm_head = spec.tied_embeddings ? weights.embedding : Matrix(spec.vocab_size, hidden);
    for (int64_t i = 0; i < spec.num_layers; ++i) {
      LayerWeights& layer = weights.layers.emplace_back();
      layer.input_norm = Vector(true, hidden);
      layer.input_norm_bias = Vector(layer_norm, hidden);
      layer.q = Matrix(q, hidden);
      layer.k = Matrix(kv, hidden);
      layer.v = Matrix(kv, hidden);
      layer.o = Matrix(hidden, q);
      layer.q_bias = Vector(spec.qkv_bias, q);
      layer.k_bias = Vector(spec.qkv_bias, kv);
      layer.v_bias = Vector(spec.qkv_bias, kv);
      layer.o_bias = Vector(spec.output_bias, hidden);
      layer.q_norm = Vector(spec.qk_norm, spec.head_dim);
      layer.k_norm = Vector(spec.qk_norm, spec.head_dim);
      layer.post_norm = Vector(true, hidden);
      layer.post_norm_bias = Vector(layer_norm, hidden);
      const bool gated = spec.mlp == ActivationKind::kGatedSilu;
      if (gated) layer.gate = Matrix(inner, hidden);
      layer.up = Matrix(inner, hidden);
      layer.down = Matrix(hidden, inner);
      layer.gate_bias = Vector(gated && spec.mlp_bias, inner);
      layer.up_bias = Vector(spec.mlp_bias, inner);
      layer.down_bias = Vector(spec.mlp_bias, hidden);
    }
  }

  ModelSpec spec;
  ModelWeights weights;

 private:
  std::vector<float>& Draw(int64_t count, double scale) {
    std::vector<float>& values = storage_.emplace_back(static_cast<size_t>(count));
    std::normal_distribution<double> normal(0, scale);
    for (float& value : values) value = static_cast<float>(normal(random_));
    return values;
  }
  // GPT-2 stores matrices transposed.
  TensorView Matrix(int64_t rows, int64_t columns) {
    const bool transposed = spec.family == "gpt2";
    return {.dtype = DType::kF32,
            .shape = {rows, columns},
            .data = Draw(rows * columns, 1 / std::sqrt(static_cast<double>(columns))).data(),
            .bytes = rows * columns * int64_t{sizeof(float)},
            .row_stride = transposed ? 1 : columns,
            .column_stride = transposed ? rows : 1};
  }
  TensorView Vector(bool there, int64_t size) {
    if (!there) return {};
    return {.dtype = DType::kF32,
            .shape = {size},
            .data = Draw(size, 1).data(),
            .bytes = size * int64_t{sizeof(float)},
            .row_stride = 1,
            .column_stride = 1};
  }

  std::mt19937_64 random_{7};
  std::deque<std::vector<float>> storage_;
};

// Neither the 13 units of the MLP nor the 26 of the vocabulary divide evenly among 4 or 8 ranks.
inline ModelSpec SmallShape(const std::string& family, int32_t kv_heads) {
  return {.family = family,
          .hidden_size = 48,
          .intermediate_size = 104,
          .num_layers = 2,
          .vocab_size = 203,
          .max_positions = 64,
          .num_q_heads = 8,
          .num_kv_heads = kv_heads,
          .head_dim = 64,
          .norm_eps = 1e-5f,
          .rope_theta = 10000};
}

inline std::vector<ModelSpec> FamilyShapes() {
  ModelSpec qwen3 = SmallShape("qwen3", 8), llama = SmallShape("llama", 4),
            qwen2 = SmallShape("qwen2", 2), ernie = SmallShape("ernie4_5", 1),
            gpt2 = SmallShape("gpt2", 8);
  qwen3.qk_norm = qwen3.tied_embeddings = true;
  llama.qkv_bias = llama.output_bias = llama.mlp_bias = true;
  qwen2.qkv_bias = true;
  ernie.rope_pairing = RopePairing::kInterleaved;
  ernie.tied_embeddings = true;
  gpt2.norm = NormKind::kLayer;
  gpt2.position = PositionKind::kLearned;
  gpt2.rope_theta = 0;
  gpt2.mlp = ActivationKind::kGeluTanh;
  gpt2.qkv_bias = gpt2.output_bias = gpt2.mlp_bias = gpt2.tied_embeddings = true;
  return {qwen3, llama, qwen2, ernie, gpt2};
}

}  // namespace tokline::testing
