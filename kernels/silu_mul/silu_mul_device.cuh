// SiLU(gate) * up.
//
// Grid: a thread a 16-byte vector of the output; blocks_per_row blocks a row, rows in x, which has
//   room for 2^31 blocks.
// Dependent launch: gate and up come from an earlier kernel, so all reads follow the wait.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/silu.cuh"

namespace tokline {

inline constexpr int kSiluMulThreads = 128;

template <typename T>
__device__ __forceinline__ uint32_t SiluMul2(uint32_t gate, uint32_t up) {
  const float2 g = Unpack2<T>(gate), u = Unpack2<T>(up);
  return Pack2<T>(Round<T>(Silu(g.x)) * u.x, Round<T>(Silu(g.y)) * u.y);
}

// `vectors` 16-byte vectors a row of the output.
template <typename T>
__global__ void __launch_bounds__(kSiluMulThreads)
    SiluMulKernel(const T* gate_up, int64_t gate_up_stride, T* out, int64_t out_stride,
                  int64_t vectors, int32_t blocks_per_row) {
  ptx::GridDependencyLaunch();
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t i =
      int64_t{blockIdx.x % blocks_per_row} * kSiluMulThreads + static_cast<int64_t>(threadIdx.x);
  if (i >= vectors) return;
  ptx::GridDependencyWait();
  const uint4* const gates = reinterpret_cast<const uint4*>(gate_up + row * gate_up_stride);
  const uint4 gate = gates[i], up = gates[vectors + i];
  reinterpret_cast<uint4*>(out + row * out_stride)[i] = {
      SiluMul2<T>(gate.x, up.x), SiluMul2<T>(gate.y, up.y), SiluMul2<T>(gate.z, up.z),
      SiluMul2<T>(gate.w, up.w)};
}

}  // namespace tokline
