// The tanh form of GELU.
//
// Grid: a thread a 16-byte vector; blocks_per_row blocks a row, rows in x, which has room for 2^31
//   blocks.
// Dependent launch: x comes from an earlier kernel, so all reads follow the wait.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {

inline constexpr int kGeluThreads = 128;

// x / 2 * (1 + tanh(z / 2)) is x / (1 + exp(-z)), written so that the exponential never overflows
// and far negative values keep their digits.
__device__ __forceinline__ float GeluTanh(float x) {
  constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
  const float z = kTwiceRootTwoOverPi * fmaf(0.044715f * x * x, x, x);
  const float e = expf(-fabsf(z));
  return __fdividef(x >= 0 ? x : x * e, 1.0f + e);
}

template <typename T>
__device__ __forceinline__ uint32_t Gelu2(uint32_t packed) {
  const float2 x = Unpack2<T>(packed);
  return Pack2<T>(GeluTanh(x.x), GeluTanh(x.y));
}

// `vectors` 16-byte vectors a row. x and out may be one tensor: a thread reads what it writes.
template <typename T>
__global__ void __launch_bounds__(kGeluThreads)
    GeluKernel(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t vectors,
               int32_t blocks_per_row) {
  ptx::GridDependencyLaunch();
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t i =
      int64_t{blockIdx.x % blocks_per_row} * kGeluThreads + static_cast<int64_t>(threadIdx.x);
  if (i >= vectors) return;
  ptx::GridDependencyWait();
  const uint4 in = reinterpret_cast<const uint4*>(x + row * x_stride)[i];
  reinterpret_cast<uint4*>(out + row * out_stride)[i] = {Gelu2<T>(in.x), Gelu2<T>(in.y),
                                                         Gelu2<T>(in.z), Gelu2<T>(in.w)};
}

}  // namespace tokline
