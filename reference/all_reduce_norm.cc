#include "reference/all_reduce_norm.h"

#include "kernels/common/error.h"
#include "reference/elements.h"
#include "reference/norm.h"

namespace tokline {

void AllReduceNormReference(const AllReduceNormParams& params) {
  Validate(params);
  const DType dtype = params.dtype;
  const int32_t ranks = params.peers.world_size;
  for (int32_t r = 0; r < ranks && params.num_tokens > 0; ++r) {
    Require(params.partials[r] != nullptr, "partials[", r, "] is null; the reference reads all of ",
            ranks);
  }
  Eigen::RowVectorXd s(params.hidden_size);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      double sum = 0;
      for (int32_t r = 0; r < ranks; ++r) {
        sum += LoadElement(dtype, params.partials[r], t * params.partial_stride + i);
      }
      if (params.residual) {
        sum += LoadElement(dtype, params.residual, t * params.residual_stride + i);
      }
      s[i] = RoundTo(dtype, sum);
    }
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      StoreElement(dtype, params.residual_out, t * params.residual_out_stride + i, s[i]);
    }
    if (!params.out) continue;
    const Eigen::RowVectorXd out = NormaliseRow(dtype, s, params.weight, params.eps);
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      StoreElement(dtype, params.out, t * params.out_stride + i, out[i]);
    }
  }
}

}  // namespace tokline
