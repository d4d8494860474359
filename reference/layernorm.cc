#include "reference/layernorm.h"

#include <Eigen/Core>
#include <cmath>

#include "reference/elements.h"

namespace tokline {

void LayerNormReference(const LayerNormParams& params) {
  Validate(params);
  const DType dtype = params.dtype;
  Eigen::RowVectorXd row(params.hidden_size);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      row[i] = LoadElement(dtype, params.x, t * params.x_stride + i);
    }
    row.array() -= row.mean();
    const double variance = row.squaredNorm() / static_cast<double>(row.size());
    const double scale = 1 / std::sqrt(variance + params.eps);
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      const double weight = LoadElement(dtype, params.weight, i);
      const double bias = LoadElement(dtype, params.bias, i);
      StoreElement(dtype, params.out, t * params.out_stride + i, row[i] * scale * weight + bias);
    }
  }
}

}  // namespace tokline
