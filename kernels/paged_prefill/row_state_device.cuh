// Online softmax of one query row, spread over the four lanes of a quad, and how its output ends.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <type_traits>

#include "kernels/device/ptx/math.cuh"

namespace tokline {

// Log2 of the largest weight. fp16 would lose small weights to its short exponent; with the largest
// at 2^15 they stay normal down to 2^-29 of it. bf16 has the exponents of fp32.
template <typename T>
inline constexpr float kLargestWeightLog2 = std::is_same_v<T, __half> ? 15.0f : 0.0f;

// Running maximum of the raw scores and this lane's share of the sum of the weights,
// 2^(scale_log2 * (score - max) + kLargestWeightLog2).
struct RowState {
  float max = -INFINITY;
  float sum = 0;
};

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Weights are 2^(scale_log2 * score - offset). Rounded once, so that an unchanged maximum corrects
// by exactly 1. A row that has seen nothing gets -inf.
template <typename T>
__device__ __forceinline__ float ExponentOffset(float max, float scale_log2) {
  return __fmul_rn(max, scale_log2) - kLargestWeightLog2<T>;
}

// The same with 0 for a row that has seen nothing: -inf - (-inf) never arises and its weights are
// 2^-inf = 0.
template <typename T>
__device__ __forceinline__ float FiniteOffset(float max, float scale_log2) {
  return max == -INFINITY ? 0.0f : ExponentOffset<T>(max, scale_log2);
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
template <typename T>
__device__ __forceinline__ float LogSumExp(float max, float sum, float scale_log2) {
  constexpr float kLn2 = 0.69314718055994530942f;
  return sum > 0 ? (ExponentOffset<T>(max, scale_log2) + log2f(sum)) * kLn2 : -INFINITY;
}

}  // namespace tokline
