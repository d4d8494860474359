// CPU reference of Linear: converts the weight to double block by block and multiplies with Eigen.
#include "reference/linear.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "kernels/common/rounding.h"
#include "reference/elements.h"
#include "reference/norm.h"
#include "reference/parallel.h"

namespace tokline {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The number of weight rows converted to double at a time: few enough for the cache.
constexpr int64_t kRowBlock = 64;

RowMajor Activations(const LinearParams& params) {
  RowMajor x(params.num_tokens, params.in_features);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    LoadElements(params.dtype, params.x, t * params.x_stride, params.in_features, x.row(t).data());
    if (params.norm_weight) {
      x.row(t) = NormaliseRow(params.dtype, x.row(t), params.norm_weight, params.norm_eps);
    }
  }
  return x;
}

// x times the transpose of weight rows [first, first + count), plus the bias of these rows.
RowMajor Product(const LinearParams& params, const RowMajor& x, int64_t first, int64_t count) {
  RowMajor weight(count, params.in_features);
  LoadElements(params.dtype, params.weight, first * params.in_features, weight.size(),
               weight.data());
  RowMajor y = x * weight.transpose();
  if (params.bias) {
    for (int64_t i = 0; i < count; ++i) {
      y.col(i).array() += LoadElement(params.dtype, params.bias, first + i);
    }
  }
  return y;
}

}  // namespace

void LinearReference(const LinearParams& params) {
  Validate(params);
  if (params.num_tokens == 0) return;
  const DType dtype = params.dtype;
  const RowMajor x = Activations(params);
  const int64_t blocks = DivideUp(params.out_features, kRowBlock);
  ParallelFor(blocks, CostOf(params).flops / 2, [&](int64_t block) {
    const int64_t first = block * kRowBlock;
    const int64_t count = std::min(kRowBlock, params.out_features - first);
    const RowMajor y = Product(params, x, first, count);
    RowMajor up;
    if (params.gated_silu) up = Product(params, x, params.out_features + first, count);
    for (int64_t t = 0; t < params.num_tokens; ++t) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = t * params.out_stride + first + i;
        if (params.out_f32) {
          StoreElement(DType::kF32, params.out, at, y(t, i));
          continue;
        }
        double value = RoundTo(dtype, y(t, i));
        if (params.gated_silu) {
          value = RoundTo(dtype, value / (1 + std::exp(-value))) * RoundTo(dtype, up(t, i));
        }
        if (params.residual) {
          value += LoadElement(dtype, params.residual, t * params.residual_stride + first + i);
        }
        StoreElement(dtype, params.out, at, value);
      }
    }
  });
}

}  // namespace tokline
