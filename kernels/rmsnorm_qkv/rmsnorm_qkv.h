// RMSNorm and the Q, K and V projections of an attention layer, with bias, QK-norm, RoPE and KV
// append as options.
#pragma once

#include <optional>

#include "kernels/common/cost.h"
#include "kernels/common/launch_options.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear.h"

namespace tokline {

// A projection after RMSNorm to rows of q, k and v. If `append` is given, QK-norm and RoPE follow
// for q in place, and QK-norm, RoPE and the append to the cache for k and v, whose columns of out
// may be left unwritten.
struct RmsNormQkvParams {
  // weight and out hold Q, K, V side by side. Without a norm_weight, x is normalised already.
  LinearParams projection = {};
  // AppendOf replaces dtype, num_tokens and the tensors q, k and v with those of the projection.
  std::optional<KvAppendParams> append = {};
};

// Returns `append` with the projection's rows as q, k and v.
KvAppendParams AppendOf(const LinearParams& projection, KvAppendParams append);
void Validate(const RmsNormQkvParams& params);
Cost CostOf(const RmsNormQkvParams& params);
void Launch(const RmsNormQkvParams& params, const LaunchOptions& options);

}  // namespace tokline
