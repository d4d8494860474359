// An RMSNorm + QKV problem on the host: a projection, and the tables and pool of an append.
#pragma once

#include "harness/tests/kernels/kv_append_case.h"
#include "harness/tests/kernels/linear_case.h"
#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

namespace tokline::testing {

struct RmsNormQkvSetup {
  DType dtype = DType::kBf16;
  int64_t tokens = 3, hidden = 64;
  int32_t num_q_heads = 6, num_kv_heads = 2, head_dim = 64;
  bool bias = false;
  bool append = true;
  bool transform = true;  // QK-norm and RoPE, or a plain copy
};

class RmsNormQkvCase {
 public:
  explicit RmsNormQkvCase(const RmsNormQkvSetup& problem)
      : setup(problem),
        projection({.dtype = problem.dtype,
                    .tokens = problem.tokens,
                    .in = problem.hidden,
                    .out = (problem.num_q_heads + 2 * problem.num_kv_heads) * problem.head_dim,
                    .norm = true,
                    .bias = problem.bias,
                    .pad = 8}),
        append({.dtype = problem.dtype,
                .num_tokens = problem.tokens,
                .num_q_heads = problem.num_q_heads,
                .num_kv_heads = problem.num_kv_heads,
                .head_dim = problem.head_dim,
                .norm = problem.transform,
                .rope = problem.transform}) {}

  RmsNormQkvSetup setup;
  LinearCase projection;
  KvAppendCase append;

  // The pointers are those of the host tensors; CUDA tests replace them.
  RmsNormQkvParams Params(void* qkv) {
    RmsNormQkvParams params{.projection = projection.Params(qkv)};
    if (setup.append) params.append = append.Params();
    return params;
  }
};

}  // namespace tokline::testing
