// A model's weights where they are computed with: converted to one dtype, in one block of memory,
// with Q, K, V fused and gate, up fused.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/decoder/backend.h"
#include "harness/models/model_spec.h"
#include "harness/models/model_weights.h"
#include "kernels/common/dtype.h"

namespace tokline {

// All contiguous, 256 B aligned. H, I, Q, K as in model_weights.h.
struct DeviceLayerWeights {
  std::byte* input_norm = nullptr;  // [H]
  std::byte* qkv = nullptr;         // [Q + 2 K, H]: Q rows, then K, then V
  std::byte* qkv_bias = nullptr;    // [Q + 2 K] or null
  std::byte* q_norm = nullptr;      // [head_dim] or null
  std::byte* k_norm = nullptr;      // [head_dim] or null
  std::byte* o = nullptr;           // [H, Q]
  std::byte* o_bias = nullptr;      // [H] or null
  std::byte* post_norm = nullptr;   // [H]
  std::byte* gate_up = nullptr;     // [2 I, H]: gate rows, then up
  std::byte* down = nullptr;        // [H, I]
};

class DeviceWeights {
 public:
  DeviceWeights(const ModelSpec& spec, const ModelWeights& weights, DType dtype, Backend& backend);

  // Of the block of memory.
  static int64_t Bytes(const ModelSpec& spec, DType dtype);

  const std::byte* embedding() const { return embedding_; }    // [vocab_size, H]
  const std::byte* final_norm() const { return final_norm_; }  // [H]
  const std::byte* lm_head() const { return lm_head_; }        // [vocab_size, H]; may be embedding
  const std::vector<DeviceLayerWeights>& layers() const { return layers_; }

 private:
  DeviceWeights() = default;
  // Places everything from `base`; returns the size. With a null base it only measures.
  int64_t Place(const ModelSpec& spec, DType dtype, std::byte* base);

  std::byte* embedding_ = nullptr;
  std::byte* final_norm_ = nullptr;
  std::byte* lm_head_ = nullptr;
  std::vector<DeviceLayerWeights> layers_;
  Memory memory_;
};

}  // namespace tokline
