// Gated SiLU and GELU.
//
// Grid: one thread per 16-byte vector of the output, blocks_per_row blocks per row. All blocks lie
//   along x, which has room for 2^31 blocks.
// Dependent launch: x comes from an earlier kernel, so all reads follow the wait.
#pragma once

#include <cstdint>

#include "kernels/activation/activation.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/silu.cuh"

namespace tokline {

inline constexpr int kActivationThreads = 128;

// x / 2 * (1 + tanh(z / 2)) equals x / (1 + exp(-z)). It is computed so that the exponential never
// overflows and large negative values keep their digits.
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

template <typename T>
__device__ __forceinline__ uint32_t GatedSilu2(uint32_t gate, uint32_t up) {
  const float2 g = Unpack2<T>(gate), u = Unpack2<T>(up);
  return Pack2<T>(Round<T>(Silu(g.x)) * u.x, Round<T>(Silu(g.y)) * u.y);
}

// `vectors` is the number of 16-byte vectors per output row. x and out may be one tensor: a thread
// has already read what it overwrites, and no other thread reads it.
template <ActivationKind kKind, typename T>
__global__ void __launch_bounds__(kActivationThreads)
    ActivationKernel(const T* x, int64_t x_stride, T* out, int64_t out_stride, int64_t vectors,
                     int32_t blocks_per_row) {
  ptx::GridDependencyLaunch();
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t i =
      int64_t{blockIdx.x % blocks_per_row} * kActivationThreads + static_cast<int64_t>(threadIdx.x);
  if (i >= vectors) return;
  ptx::GridDependencyWait();
  const uint4* const in = reinterpret_cast<const uint4*>(x + row * x_stride);
  uint4 result = in[i];
  if constexpr (kKind == ActivationKind::kGatedSilu) {
    const uint4 up = in[vectors + i];
    result = {GatedSilu2<T>(result.x, up.x), GatedSilu2<T>(result.y, up.y),
              GatedSilu2<T>(result.z, up.z), GatedSilu2<T>(result.w, up.w)};
  } else {
    result = {Gelu2<T>(result.x), Gelu2<T>(result.y), Gelu2<T>(result.z), Gelu2<T>(result.w)};
  }
  reinterpret_cast<uint4*>(out + row * out_stride)[i] = result;
}

}  // namespace tokline
