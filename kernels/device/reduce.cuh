// Reductions within a warp. For wider ones, use CUB or, where latency dominates, the functions of
// sampling (select_device.cuh).
#pragma once

namespace tokline {

// Sums over groups of `kWidth` neighbouring lanes; every lane of the group gets the sum.
template <int kWidth = 32, typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

template <int kWidth = 32>
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

}  // namespace tokline
