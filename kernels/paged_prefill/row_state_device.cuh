// Online softmax of one query row, spread over the four lanes of a quad, and how its output ends.
#pragma once

#include <cmath>

#include "kernels/device/ptx/math.cuh"

namespace tokline {

// Running maximum of the raw scores and this lane's share of the sum of 2^(scale_log2 * (s - max)).
struct RowState {
  float max = -INFINITY;
  float sum = 0;
};

__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The maximum as an exponent's offset, rounded once, so that an unchanged maximum corrects by
// exactly
// 1. A row that has seen nothing gets 0: -inf - (-inf) never arises and its weights are 2^-inf = 0.
__device__ __forceinline__ float ExponentOffset(float max, float scale_log2) {
  return max == -INFINITY ? 0.0f : __fmul_rn(max, scale_log2);
}

// What turns sums relative to `old_max` into sums relative to the new maximum's `offset`.
__device__ __forceinline__ float Correction(float old_max, float scale_log2, float offset) {
  return ptx::Exp2(__fmul_rn(old_max, scale_log2) - offset);
}

// Divides by a row's whole sum, correctly rounded (Markstein); an empty row's 0 by 1.
class RowDivisor {
 public:
  __device__ explicit RowDivisor(float sum) {
    sum_ = sum > 0 ? sum : 1.0f;
    inverse_ = __frcp_rn(sum_);
  }
  __device__ float Divide(float x) const {
    const float quotient = x * inverse_;
    return fmaf(fmaf(-quotient, sum_, x), inverse_, quotient);
  }

 private:
  float sum_;
  float inverse_;
};

// Natural log-sum-exp of the scaled scores; -inf for an empty row.
__device__ __forceinline__ float LogSumExp(float max, float sum, float scale_log2) {
  constexpr float kLn2 = 0.69314718055994530942f;
  return sum > 0 ? (ExponentOffset(max, scale_log2) + log2f(sum)) * kLn2 : -INFINITY;
}

}  // namespace tokline
