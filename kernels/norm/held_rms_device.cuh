// RMSNorm, optionally after adding a residual, of rows that fit the registers of their threads:
// every tensor is accessed once.
//
// Grid: one block of 128 to 512 threads per row, or one warp per row with 4 rows per block.
// Registers: a thread holds kHeld accesses of 16 bytes, packed. Unpacked, they would take twice the
//   registers, so the compiler must not see that the second pass unpacks the same words.
// Shared memory: the warps' sums. Barriers: one, with one block per row.
// With one access per thread the weight is loaded before the grid-dependency wait.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_plan.h"

namespace tokline {

template <typename T, int kThreadsPerRow, int kHeldAccesses>
struct HeldRmsPolicy {
  using Type = T;
  static constexpr int kThreads = kThreadsPerRow;
  static constexpr int kHeld = kHeldAccesses;
  static constexpr int kRowsPerBlock = kThreads == 32 ? kNormWarpRowsPerBlock : 1;
  static constexpr int kBlockThreads = kThreads * kRowsPerBlock;
};

// Four words of two elements each.
struct PackedEight {
  uint4 words;

  __device__ __forceinline__ uint32_t& operator[](int i) { return (&words.x)[i]; }
  __device__ __forceinline__ uint32_t operator[](int i) const { return (&words.x)[i]; }
};

// The rounded sums.
template <typename T>
__device__ __forceinline__ PackedEight Add(const PackedEight& a, const PackedEight& b) {
  PackedEight sum;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = Unpack2<T>(a[i]), y = Unpack2<T>(b[i]);
    sum[i] = Pack2<T>(x.x + y.x, x.y + y.y);
  }
  return sum;
}

// Values are normalised, rounded, multiplied by the weight, and rounded again. Both factors have
// few enough digits for their fp32 product to be exact.
template <typename T>
__device__ __forceinline__ PackedEight Normalise(const PackedEight& values, float scale,
                                                 const PackedEight& weight) {
  PackedEight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t word = values[i];
    asm volatile("" : "+r"(word));  // unpacked again, not kept unpacked
    const float2 x = Unpack2<T>(word);
    out[i] = Multiply2<T>(Pack2<T>(x.x * scale, x.y * scale), weight[i]);
  }
  return out;
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kBlockThreads)
    HeldRmsNormKernel(const __grid_constant__ NormParams params) {
  using T = typename Policy::Type;
  constexpr int kThreads = Policy::kThreads, kHeld = Policy::kHeld;
  ptx::GridDependencyLaunch();
  const int64_t row = int64_t{blockIdx.x} * Policy::kRowsPerBlock + threadIdx.x / kThreads;
  const int member = threadIdx.x % kThreads;
  const int accesses = static_cast<int32_t>(params.hidden_size) / 8;
  const auto at = [](const void* tensor, int64_t offset) {
    return reinterpret_cast<PackedEight*>(static_cast<T*>(const_cast<void*>(tensor)) + offset);
  };
  const PackedEight* const weight = at(params.weight, 0);
  PackedEight weights[kHeld] = {};
  const auto load_weights = [&] {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = member + h * kThreads;
      if (i < accesses) weights[h] = weight[i];
    }
  };
  if constexpr (kHeld == 1) load_weights();
  ptx::GridDependencyWait();
  // Only whole warps return here, and only with one warp per row, where no barrier follows.
  if (row >= params.num_tokens) return;

  // x, add, residual and out may be the same tensor: a thread stores only where it has loaded.
  const PackedEight* const x = at(params.x, row * params.x_stride);
  const PackedEight* const add = at(params.add, row * params.add_stride);
  const bool has_add = params.add != nullptr;
  PackedEight held[kHeld] = {}, added[kHeld] = {};
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = member + h * kThreads;
    if (i < accesses) held[h] = x[i];
    if (i < accesses && has_add) added[h] = add[i];
  }
  if constexpr (kHeld > 1) load_weights();
  float squares = 0;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = member + h * kThreads;
    if (has_add) {
      held[h] = Add<T>(held[h], added[h]);
      if (i < accesses) at(params.residual_out, row * params.residual_out_stride)[i] = held[h];
    }
    squares += SumOfSquares<T>(held[h].words);
  }
  squares = WarpSum(squares);
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    __shared__ float sums[kWarps];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) squares += sums[warp];
  }
  const float scale = rsqrtf(squares / static_cast<float>(params.hidden_size) + params.eps);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = member + h * kThreads;
    if (i < accesses) {
      at(params.out, row * params.out_stride)[i] = Normalise<T>(held[h], scale, weights[h]);
    }
  }
}

}  // namespace tokline
