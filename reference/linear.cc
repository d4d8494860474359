// CPU reference of Linear: converts the weight to double block by block and multiplies with Eigen.
#include "reference/linear.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "reference/elements.h"
#include "reference/norm.h"

namespace tokline {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The number of weight rows converted to double at a time: few enough for the cache.
constexpr int64_t kRowBlock = 64;

template <typename T>
void Convert(const void* base, int64_t first, Eigen::Ref<RowMajor> to) {
  const T* source = static_cast<const T*>(base) + first;
  double* target = to.data();
  for (Eigen::Index i = 0; i < to.size(); ++i) {
    target[i] = static_cast<double>(static_cast<float>(source[i]));
  }
}

// Loads contiguous rows starting at element `first`.
void LoadRows(DType dtype, const void* base, int64_t first, Eigen::Ref<RowMajor> to) {
  switch (dtype) {
    case DType::kF32:
      return Convert<float>(base, first, to);
    case DType::kBf16:
      return Convert<Eigen::bfloat16>(base, first, to);
    case DType::kF16:
      return Convert<Eigen::half>(base, first, to);
  }
}

RowMajor Activations(const LinearParams& params) {
  RowMajor x(params.num_tokens, params.in_features);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    LoadRows(params.dtype, params.x, t * params.x_stride, x.middleRows(t, 1));
    if (params.norm_weight) {
      x.row(t) = NormaliseRow(params.dtype, x.row(t), params.norm_weight, params.norm_eps);
    }
  }
  return x;
}

// x times the transpose of weight rows [first, first + count), plus the bias of these rows.
RowMajor Product(const LinearParams& params, const RowMajor& x, int64_t first, int64_t count) {
  RowMajor weight(count, params.in_features);
  LoadRows(params.dtype, params.weight, first * params.in_features, weight);
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
  for (int64_t first = 0; first < params.out_features; first += kRowBlock) {
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
  }
}

}  // namespace tokline
