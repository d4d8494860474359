// What a model is, as data: the numbers of its config.json that a decoder needs. Families differ in
// their data and in their table of weight names (model_weights.h), never in subclasses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/common/dtype.h"

namespace tokline {

struct ModelSpec {
  std::string family;  // "qwen3"
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // longest context, tokens
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads; at most 16 query heads per KV head
  int32_t head_dim = 0;      // 64 or 128
  float norm_eps = 0;
  double rope_theta = 0;
  bool qk_norm = false;  // RMSNorm of each head of Q and K before RoPE
  bool qkv_bias = false;
  bool output_bias = false;            // of the attention's output projection
  bool tied_embeddings = false;        // the LM head is the embedding
  DType dtype = DType::kF32;           // storage type of the checkpoint's weights
  std::vector<int32_t> eos_token_ids;  // of generation_config.json, else of config.json; sorted

  int64_t QSize() const { return int64_t{num_q_heads} * head_dim; }
  int64_t KvSize() const { return int64_t{num_kv_heads} * head_dim; }
  // K and V of one token over all layers, stored as `kv_dtype`.
  int64_t KvBytesPerToken(DType kv_dtype) const {
    return 2 * num_layers * KvSize() * SizeOf(kv_dtype);
  }
};

// Reads config.json (and generation_config.json if there is one) of a Hugging Face model folder,
// as transformers 4 and 5 write them. Throws RuntimeFailure, naming the file, key, value and what
// is supported, if a file cannot be read or the model cannot be decoded.
ModelSpec LoadModelSpec(const std::filesystem::path& dir);

}  // namespace tokline
