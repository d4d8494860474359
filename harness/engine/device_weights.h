// A rank's part of a model's weights on its device: converted to one dtype, in one block of memory,
// with Q, K and V fused, and gate and up fused. Every matrix is [outputs, inputs]. RoPE always
// pairs element i of a head with element i + head_dim / 2. If the model pairs neighbours, each
// head's rows of Q and K are reordered (even rows, then odd rows). Scores stay the same, because
// both factors of each product are permuted alike.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/engine/backend.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"
#include "harness/models/sharding.h"
#include "kernels/common/dtype.h"

namespace tokline {

// All tensors are contiguous and 256 B aligned, and null if the model lacks them. H, I, Q and K are
// as in model_weights.h, of the rank's model.
struct DeviceLayerWeights {
  std::byte* input_norm = nullptr;       // [H]
  std::byte* input_norm_bias = nullptr;  // [H]
  std::byte* qkv = nullptr;              // [Q + 2 K, H]: Q rows, then K, then V
  std::byte* qkv_bias = nullptr;         // [Q + 2 K]
  std::byte* q_norm = nullptr;           // [head_dim]
  std::byte* k_norm = nullptr;           // [head_dim]
  std::byte* o = nullptr;                // [H, Q]
  std::byte* o_bias = nullptr;           // [H]
  std::byte* post_norm = nullptr;        // [H]
  std::byte* post_norm_bias = nullptr;   // [H]
  std::byte* up = nullptr;               // [2 I, H]: gate rows, then up; or [I, H] without gate
  std::byte* up_bias = nullptr;          // [2 I] or [I]
  std::byte* down = nullptr;             // [H, I]
  std::byte* down_bias = nullptr;        // [H]
};

class DeviceWeights {
 public:
  // Holds the rank's part of `weights`, which are those of the whole model.
  DeviceWeights(const ModelShard& shard, const ModelWeights& weights, DType dtype,
                Backend& backend);

  // Returns the size of the block of memory.
  static int64_t Bytes(const ModelSpec& spec, DType dtype);

  const std::byte* embedding() const { return embedding_; }    // [vocab_size, H]
  const std::byte* positions() const { return positions_; }    // [max_positions, H] or null
  const std::byte* final_norm() const { return final_norm_; }  // [H]
  const std::byte* final_norm_bias() const { return final_norm_bias_; }  // [H] or null
  const std::byte* lm_head() const { return lm_head_; }  // [vocab_size, H]; may be embedding()
  const std::vector<DeviceLayerWeights>& layers() const { return layers_; }
  // The distance from a layer's tensors to those of the next layer.
  int64_t LayerStrideBytes() const { return layer_stride_bytes_; }

 private:
  DeviceWeights() = default;
  // Draws the rank's part of all weights, so that logits are as peaked as those of a trained model.
  void Draw(const ModelShard& shard, uint64_t seed, DType dtype, Backend& backend);
  // Places all tensors from `base` on and returns the size. With a null base it only measures.
  int64_t Place(const ModelSpec& spec, DType dtype, std::byte* base);

  std::byte* embedding_ = nullptr;
  std::byte* positions_ = nullptr;
  std::byte* final_norm_ = nullptr;
  std::byte* final_norm_bias_ = nullptr;
  std::byte* lm_head_ = nullptr;
  std::vector<DeviceLayerWeights> layers_;
  int64_t layer_stride_bytes_ = 0;
  Memory memory_;
};

}  // namespace tokline
