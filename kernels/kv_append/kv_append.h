// Writes new K and V rows to their slots in the paged cache, with optional QK-norm and RoPE. The
// query heads get the same norm and rotation in the same launch.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// Applies per token and head, in this order: QK-norm (RMSNorm over head_dim, rounded before and
// after the multiplication with the weight), RoPE (fp32, one rounding), store.
struct KvAppendParams {
  DType dtype = DType::kBf16;  // of all tensors except the tables
  int64_t num_tokens = 0;
  int32_t num_q_heads = 0;  // heads in q_in and q_out; 0 if q is not touched
  PagedKvLayout layout = {};

  const void* q_in = nullptr;  // [num_tokens, num_q_heads, head_dim], rows 16 B aligned
  int64_t q_in_stride = 0;     // elements between tokens
  void* q_out = nullptr;       // same shape; may be q_in
  int64_t q_out_stride = 0;
  const void* k = nullptr;  // [num_tokens, num_kv_heads, head_dim], rows 16 B aligned
  int64_t k_stride = 0;
  const void* v = nullptr;  // [num_tokens, num_kv_heads, head_dim], rows 16 B aligned
  int64_t v_stride = 0;
  void* kv = nullptr;  // the layer's pool in the given layout, 16 B aligned

  const int64_t* slots = nullptr;  // [num_tokens] page * page_size + row; -1: do not write K and V
  const void* q_norm_weight = nullptr;  // [head_dim] or null: no norm on q
  const void* k_norm_weight = nullptr;  // [head_dim] or null: no norm on k
  float norm_eps = 0;
  const int32_t* positions = nullptr;   // [num_tokens] rows of rope_cos_sin, required with it; in
                                        // range even where the slot is -1
  const float* rope_cos_sin = nullptr;  // [rope_rows, head_dim / 2] (cos, sin) pairs, or null: no
                                        // RoPE. Rotates pairs (i, i + head_dim / 2)
  int64_t rope_rows = 0;
};

// Throws InvalidArgument. ValidateSlots checks host copies of slots and positions.
void Validate(const KvAppendParams& params);
void ValidateSlots(const KvAppendParams& params, const int64_t* host_slots,
                   const int32_t* host_positions);

Cost CostOf(const KvAppendParams& params);

void Launch(const KvAppendParams& params, const LaunchOptions& options);

}  // namespace tokline
