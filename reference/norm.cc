#include "reference/norm.h"

#include <cmath>

#include "reference/elements.h"

namespace tokline {
namespace {

Eigen::RowVectorXd LayerNormRow(const NormParams& params, Eigen::RowVectorXd row) {
  row.array() -= row.mean();
  const double variance = row.squaredNorm() / static_cast<double>(row.size());
  const double scale = 1 / std::sqrt(variance + params.eps);
  for (Eigen::Index i = 0; i < row.size(); ++i) {
    row[i] = row[i] * scale * LoadElement(params.dtype, params.weight, i) +
             LoadElement(params.dtype, params.bias, i);
  }
  return row;
}

}  // namespace

Eigen::RowVectorXd NormaliseRow(DType dtype, const Eigen::RowVectorXd& s, const void* weight,
                                double eps) {
  const double inverse_rms = 1 / std::sqrt(s.squaredNorm() / static_cast<double>(s.size()) + eps);
  Eigen::RowVectorXd normalised(s.size());
  for (Eigen::Index i = 0; i < s.size(); ++i) {
    const double n = RoundTo(dtype, s[i] * inverse_rms);
    normalised[i] = RoundTo(dtype, n * LoadElement(dtype, weight, i));
  }
  return normalised;
}

void NormReference(const NormParams& params) {
  Validate(params);
  const DType dtype = params.dtype;
  Eigen::RowVectorXd s(params.hidden_size);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      s[i] = LoadElement(dtype, params.x, t * params.x_stride + i);
      if (params.add) {
        s[i] = RoundTo(dtype, s[i] + LoadElement(dtype, params.add, t * params.add_stride + i));
      }
    }
    const Eigen::RowVectorXd out = params.kind == NormKind::kRms
                                       ? NormaliseRow(dtype, s, params.weight, params.eps)
                                       : LayerNormRow(params, s);
    for (int64_t i = 0; i < params.hidden_size; ++i) {
      if (params.add) {
        StoreElement(dtype, params.residual_out, t * params.residual_out_stride + i, s[i]);
      }
      StoreElement(dtype, params.out, t * params.out_stride + i, out[i]);
    }
  }
}

}  // namespace tokline
