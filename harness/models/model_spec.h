// What a model is, as data: the numbers of its config.json that a decoder needs, and which of the
// known parts it is made of. Families differ in their data (family.h), never in subclasses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/dtype.h"

namespace tokline {

enum class NormKind : uint8_t {
  kRms,
  kLayer,  // mean and bias
};
enum class PositionKind : uint8_t {
  kRope,
  kLearned,  // a table of rows that are added to the embeddings
};
// Which elements of a head RoPE rotates together.
enum class RopePairing : uint8_t {
  kHalf,         // i and i + head_dim / 2
  kInterleaved,  // 2 i and 2 i + 1
};
enum class MlpKind : uint8_t {
  kGatedSilu,  // down(silu(gate(x)) * up(x))
  kGelu,       // down(gelu(up(x))), the tanh form
};

constexpr std::string_view Name(NormKind norm) {
  return norm == NormKind::kRms ? "rmsnorm" : "layernorm";
}
constexpr std::string_view Name(PositionKind position) {
  return position == PositionKind::kRope ? "rope" : "learned";
}
constexpr std::string_view Name(RopePairing pairing) {
  return pairing == RopePairing::kHalf ? "half" : "interleaved";
}
constexpr std::string_view Name(MlpKind mlp) {
  return mlp == MlpKind::kGatedSilu ? "gated_silu" : "gelu_tanh";
}

// "llama3": frequencies of wavelengths above original_positions / low_freq_factor are divided by
// `factor`, those below original_positions / high_freq_factor stay, and those between are mixed.
struct Llama3Scaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 0;
  bool operator==(const Llama3Scaling&) const = default;
};

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
  NormKind norm = NormKind::kRms;
  float norm_eps = 0;
  PositionKind position = PositionKind::kRope;
  RopePairing rope_pairing = RopePairing::kHalf;
  double rope_theta = 0;                      // 0 without RoPE
  std::optional<Llama3Scaling> rope_scaling;  // none: plain RoPE
  bool qk_norm = false;                       // RMSNorm of each head of Q and K before RoPE
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  MlpKind mlp = MlpKind::kGatedSilu;
  bool mlp_bias = false;               // of every projection of the MLP
  bool tied_embeddings = false;        // the LM head is the embedding
  DType dtype = DType::kF32;           // storage type of the checkpoint's weights
  std::vector<int32_t> eos_token_ids;  // of generation_config.json, else of config.json; sorted

  int64_t QSize() const { return int64_t{num_q_heads} * head_dim; }
  int64_t KvSize() const { return int64_t{num_kv_heads} * head_dim; }
  // Rows of the MLP's first projection.
  int64_t UpRows() const {
    return mlp == MlpKind::kGatedSilu ? 2 * intermediate_size : intermediate_size;
  }
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
