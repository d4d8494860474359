// The description of a model: the numbers from its config.json that a decoder needs, and which of
// the known building blocks it uses. Families differ only in data (family.h); there are no
// subclasses.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/dtype.h"
#include "kernels/common/layer_kinds.h"

namespace tokline {

enum class PositionKind : uint8_t {
  kRope,
  kLearned,  // a table whose rows are added to the embeddings
};
// Which elements of a head RoPE rotates as a pair.
enum class RopePairing : uint8_t {
  kHalf,         // i and i + head_dim / 2
  kInterleaved,  // 2 i and 2 i + 1
};

constexpr std::string_view Name(PositionKind position) {
  return position == PositionKind::kRope ? "rope" : "learned";
}
constexpr std::string_view Name(RopePairing pairing) {
  return pairing == RopePairing::kHalf ? "half" : "interleaved";
}

// RoPE scaling of type "llama3". Frequencies whose wavelength is above original_positions /
// low_freq_factor are divided by `factor`, those below original_positions / high_freq_factor are
// kept, and those in between are interpolated.
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
  int64_t max_positions = 0;  // longest context, in tokens
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads; at most 16 query heads per KV head
  int32_t head_dim = 0;      // 64 or 128
  NormKind norm = NormKind::kRms;
  float norm_eps = 0;
  PositionKind position = PositionKind::kRope;
  RopePairing rope_pairing = RopePairing::kHalf;
  double rope_theta = 0;                      // at least 1; 0 if the model does not use RoPE
  std::optional<Llama3Scaling> rope_scaling;  // empty for plain RoPE
  bool qk_norm = false;                       // RMSNorm of each head of Q and K before RoPE
  bool qkv_bias = false;
  bool output_bias = false;  // bias of the attention output projection
  // down(silu(gate(x)) * up(x)), or down(gelu(up(x))).
  ActivationKind mlp = ActivationKind::kGatedSilu;
  bool mlp_bias = false;               // bias of every projection in the MLP
  bool tied_embeddings = false;        // whether the LM head is the embedding
  DType dtype = DType::kF32;           // storage type of the checkpoint's weights
  std::vector<int32_t> eos_token_ids;  // sorted; generation_config.json takes precedence

  // The factor of attention scores, 1 / sqrt(head_dim).
  float ScoreScale() const {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  }
  int64_t QSize() const { return int64_t{num_q_heads} * head_dim; }
  int64_t KvSize() const { return int64_t{num_kv_heads} * head_dim; }
  // Rows of the MLP's first projection (gate and up together if the MLP is gated).
  int64_t UpRows() const {
    return mlp == ActivationKind::kGatedSilu ? 2 * intermediate_size : intermediate_size;
  }
  // Bytes of K and V per token in all layers together, stored as `kv_dtype`.
  int64_t KvBytesPerToken(DType kv_dtype) const {
    return 2 * num_layers * KvSize() * SizeOf(kv_dtype);
  }
};

// Reads config.json, and generation_config.json if there is one, from a Hugging Face model folder
// as written by transformers 4 and 5. Throws RuntimeFailure, naming the file, key, value and what
// is supported, if a file cannot be read or the model is not supported.
ModelSpec LoadModelSpec(const std::filesystem::path& dir);

}  // namespace tokline
