// A whole decode step of a few sequences in one persistent kernel: embedding, all layers and the LM
// head, everything but sampling. It computes what the chain of embedding, rmsnorm_qkv,
// chunk_decode and linear computes, with the same rounding points.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/common/chunk_table.h"
#include "kernels/common/cost.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

inline constexpr int32_t kMaxDecodeStepTokens = 4;
inline constexpr int32_t kDecodeStepTileTokens = 16;

// A model of RMSNorm, grouped-query attention with RoPE, and a gated MLP. H = hidden_size, I =
// intermediate_size, Q = num_q_heads * head_dim, K = num_kv_heads * head_dim. Tensors are
// contiguous and 16 B aligned. The pointers of a layer's tensors are those of layer 0; layer l's
// lie l * layer_stride_bytes further.
struct DecodeStepModel {
  DType dtype = DType::kBf16;
  int32_t num_layers = 0;
  int32_t num_q_heads = 0;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  float norm_eps = 0;
  float scale = 1.0f;                // of the scores
  const void* embedding = nullptr;   // [vocab_size, H]
  const void* final_norm = nullptr;  // [H]
  const void* lm_head = nullptr;     // [vocab_size, H]; may be embedding
  int64_t layer_stride_bytes = 0;
  const void* input_norm = nullptr;  // [H]
  const void* qkv = nullptr;         // [Q + 2 K, H]: Q rows, then K, then V
  const void* qkv_bias = nullptr;    // [Q + 2 K] or null
  const void* q_norm = nullptr;      // [head_dim] or null
  const void* k_norm = nullptr;      // [head_dim]; null exactly if q_norm is
  const void* o = nullptr;           // [H, Q]
  const void* post_norm = nullptr;   // [H]
  const void* gate_up = nullptr;     // [2 I, H]: gate rows, then up
  const void* down = nullptr;        // [H, I]
};

struct DecodeStepParams {
  DecodeStepModel model = {};
  int64_t num_tokens = 0;              // rows of the step, one per sequence
  const int32_t* token_ids = nullptr;  // [num_tokens]; ids outside the vocabulary give zeros
  const int32_t* positions = nullptr;  // [num_tokens] in [0, rope_rows)
  // [num_tokens] where K and V of the row's token go, which is the last token of its sequence's
  // context. -1: nothing is written, and the context is read as it is.
  const int64_t* slots = nullptr;
  ChunkTableView table = {};            // num_tokens sequences, without shifts
  PagedKvLayout layout = {};            // of one layer's pool, kHnd
  void* kv = nullptr;                   // [num_layers] pools one after another, 16 B aligned
  const float* rope_cos_sin = nullptr;  // [rope_rows, head_dim / 2] pairs (cos, sin), 16 B aligned
  int64_t rope_rows = 0;
  float* logits = nullptr;  // [num_tokens, vocab_size] fp32, 8 B aligned
  // CUDA only. The number of parts into which each sequence's context is cut: DecodeStepParts().
  const int32_t* parts = nullptr;  // [num_tokens]
  void* workspace = nullptr;  // CUDA only, 256 B aligned, zero before the first launch, and used by
                              // launches of one model only, one after another
  int64_t workspace_bytes = 0;
  // CUDA only, or null: times in cycles of a block's SM, [SMs, DecodeStepStamps(num_layers)]. The
  // first stamp marks the block's start. Each further one marks when the block's first warp had
  // stored its results of a phase: in each layer the kDecodeStepPhases phases Q/K/V, attention, o,
  // gate_up and down, and finally lm_head.
  int64_t* stamps = nullptr;
};
inline constexpr int32_t kDecodeStepPhases = 5;
constexpr int64_t DecodeStepStamps(int32_t num_layers) {
  return 2 + int64_t{num_layers} * kDecodeStepPhases;
}

// Returns why the kernel cannot run such steps on this device, or an empty string if it can. Only
// shapes matter, and which pointers are null.
std::string DecodeStepRefusal(const DecodeStepModel& model, const PagedKvLayout& layout,
                              int64_t num_tokens, const DeviceFacts& device);
// How the contexts of a step are cut: equal parts that different blocks read at the same time.
// `tiles` holds the number of tiles of each sequence, including its new token: a chunk of n tokens
// has DecodeStepTiles(n). Empty if the contexts are too long for the kernel.
std::vector<int32_t> DecodeStepParts(std::span<const int32_t> tiles, const PagedKvLayout& layout,
                                     const DeviceFacts& device);
constexpr int32_t DecodeStepTiles(int64_t tokens) {
  return static_cast<int32_t>((tokens + kDecodeStepTileTokens - 1) / kDecodeStepTileTokens);
}
// The workspace for steps of any number of tokens that the kernel takes.
int64_t DecodeStepWorkspaceBytes(const DecodeStepModel& model, const PagedKvLayout& layout,
                                 const DeviceFacts& device);
void Validate(const DecodeStepParams& params);
Cost CostOf(const DecodeStepParams& params);
void Launch(const DecodeStepParams& params, const LaunchOptions& options);

}  // namespace tokline
