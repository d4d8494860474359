// RMSNorm and the Q, K, V projections of an attention layer, with bias, QK-norm, RoPE and KV
// append as fused options.
#pragma once

#include <optional>

#include "kernels/common/cost.h"
#include "kernels/common/launch_options.h"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear.h"

namespace tokline {

// A projection after RMSNorm to rows of q, k and v, then, where `append` is given, QK-norm and RoPE
// on q in place, and QK-norm, RoPE and append of k and v.
struct RmsNormQkvParams {
  LinearParams projection = {};  // with a norm_weight; weight and out are Q, K, V side by side
  // dtype, num_tokens and the tensors q, k and v are those of the projection: AppendOf.
  std::optional<KvAppendParams> append = {};
};

// `append` with the projection's rows for q, k and v.
KvAppendParams AppendOf(const LinearParams& projection, KvAppendParams append);
void Validate(const RmsNormQkvParams& params);
// That the parts fit together: all that Validate says but what each part's launch says itself.
void ValidateComposition(const RmsNormQkvParams& params);
Cost CostOf(const RmsNormQkvParams& params);
void Launch(const RmsNormQkvParams& params, const LaunchOptions& options);

}  // namespace tokline
