// RMSNorm and the Q, K, V projections of an attention layer, with bias, QK-norm, RoPE and KV
// append as fused options.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/paged_kv_layout.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear.h"

namespace tokline {

// qkv = round(RMSNorm(x) W^T + bias), then, where `append` is set, QK-norm and RoPE on q in place
// (in qkv) and QK-norm, RoPE and append of k and v, as kv_append.h defines them.
struct RmsNormQkvParams {
  DType dtype = DType::kBf16;
  LinearVariant variant = LinearVariant::kAuto;  // of the projection
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;  // a multiple of 8
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;     // 64 or 128
  const void* x = nullptr;  // [num_tokens, hidden_size], rows 16 B aligned
  int64_t x_stride = 0;
  const void* norm_weight = nullptr;  // [hidden_size], 16 B aligned
  float norm_eps = 0;
  const void* weight = nullptr;  // [(num_q_heads + 2 num_kv_heads) head_dim, hidden_size]: Q, K, V
                                 // rows, contiguous, 16 B aligned
  const void* bias = nullptr;    // [(num_q_heads + 2 num_kv_heads) head_dim] or null
  void* qkv = nullptr;  // [num_tokens, (num_q_heads + 2 num_kv_heads) head_dim], rows 16 B aligned
  int64_t qkv_stride = 0;

  bool append = false;
  // Used when append: layout, kv, slots, QK-norm weights and eps, positions, RoPE table. The q, k,
  // v pointers, strides, dtype, num_tokens and num_q_heads are taken from above.
  KvAppendParams append_params = {};

  Matmul* matmul = nullptr;     // CUDA, kMatmul
  void* workspace = nullptr;    // CUDA, 256 B aligned
  int64_t workspace_bytes = 0;  // RmsNormQkvWorkspaceBytes(params)
};

int64_t RmsNormQkvWorkspaceBytes(const RmsNormQkvParams& params);
// The projection as a Linear problem, and the append that follows it.
LinearParams ProjectionOf(const RmsNormQkvParams& params);
KvAppendParams AppendOf(const RmsNormQkvParams& params);
void Validate(const RmsNormQkvParams& params);
Cost CostOf(const RmsNormQkvParams& params);
void Launch(const RmsNormQkvParams& params, const LaunchOptions& options);

}  // namespace tokline
