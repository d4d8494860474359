// Online softmax of one query row, distributed over the four lanes of a quad, and its epilogue.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <type_traits>

#include "kernels/device/ptx/math.cuh"

namespace tokline {

// Log2 of the largest weight. fp16 would lose small weights because of its small exponent range.
// With the largest weight at 2^15, weights down to 2^-29 of it stay normal. bf16 has the exponent
// range of fp32 and needs no scaling.
template <typename T>
inline constexpr float kLargestWeightLog2 = std::is_same_v<T, __half> ? 15.0f : 0.0f;

// Weights are 2^(score - reference), with scores in base 2. These functions convert a row's largest
// score to its reference, and back.
template <typename T>
__device__ __forceinline__ float ReferenceOf(float largest_score) {
  return kLargestWeightLog2<T> == 0 ? largest_score : largest_score - kLargestWeightLog2<T>;
}
template <typename T>
__device__ __forceinline__ float LargestScoreOf(float reference) {
  return kLargestWeightLog2<T> == 0 ? reference : reference + kLargestWeightLog2<T>;
}

// Returns 2^exponent as a weight, limited to the largest one: with huge scores, subtracting the
// reference may be off by 1, and fp16 could not represent the result.
template <typename T>
__device__ __forceinline__ float WeightOf(float exponent) {
  constexpr auto kLargest = static_cast<float>(1 << static_cast<int>(kLargestWeightLog2<T>));
  const float weight = ptx::Exp2(exponent);
  return kLargestWeightLog2<T> == 0 ? weight : fminf(weight, kLargest);
}

// The running maximum of the raw scores, and this lane's share of the sum of the weights, which are
// 2^(scale_log2 * (score - max) + kLargestWeightLog2).
struct RowState {
  float max = -INFINITY;
  float sum = 0;
};

// Weights are 2^(scale_log2 * score - offset). Each operation is rounded on its own, so that an
// unchanged maximum gives a correction factor of exactly 1. A row that has seen nothing gets -inf.
// For fp16 the offset is rounded up: from 2^24 on it has no bits below 1, and a smaller offset
// would give weights of 2^16 and more, which fp16 cannot represent. The largest weight then lies up
// to four units in the offset's last place below 2^15, which leaves it normal for offsets below
// 2^26; from 2^28 on all weights of a row may be 0.
template <typename T>
__device__ __forceinline__ float ExponentOffset(float max, float scale_log2) {
  if constexpr (kLargestWeightLog2<T> == 0) {
    return __fmul_rn(max, scale_log2);
  } else {
    return __fadd_ru(__fmul_ru(max, scale_log2), -kLargestWeightLog2<T>);
  }
}

// Like ExponentOffset, but 0 for a row that has seen nothing, so that -inf - (-inf) never arises
// and the row's weights are 2^-inf = 0.
template <typename T>
__device__ __forceinline__ float FiniteOffset(float max, float scale_log2) {
  return max == -INFINITY ? 0.0f : ExponentOffset<T>(max, scale_log2);
}

// Divides by a row's total sum with correct rounding (Markstein). An empty row's 0 is divided by 1.
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
