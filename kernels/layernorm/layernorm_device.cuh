// LayerNorm over rows.
//
// Grid: a block of 256 threads takes a row, or each of its 4 warps takes one (short rows, many of
// them). A row is read three times, for the mean, for the variance around it and for the result;
// the second and third time it comes from L1.
// Shared memory: a float a warp and sum, with a block a row. Barriers: two, with a block a row.
// A thread's first weight and bias are loaded before the grid dependency, all else after it.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline {

struct LayerNormArgs {
  const void* x;
  const void* weight;
  const void* bias;
  void* out;
  int64_t x_stride, out_stride;
  int64_t num_tokens;
  int32_t hidden_size;
  float eps;
};

// Threads a row is 32 (kRowsPerBlock rows a block) or a whole block; kWidth elements an access.
template <typename T, int kElements, int kThreads>
struct LayerNormPolicy {
  using Type = T;
  static constexpr int kWidth = kElements;
  static constexpr int kThreadsPerRow = kThreads;
  static constexpr int kRowsPerBlock = kThreads == 32 ? 4 : 1;
  static constexpr int kBlockThreads = kThreads * kRowsPerBlock;
};

// kWidth neighbouring elements, moved in one access.
template <typename Policy>
struct alignas(sizeof(typename Policy::Type) * Policy::kWidth) LayerNormAccess {
  typename Policy::Type at[Policy::kWidth];
};

// Sum over the threads of a row; every one of them gets it. `scratch` is not used twice.
template <typename Policy>
__device__ __forceinline__ float LayerNormRowSum(float x, float* scratch) {
  x = WarpSum(x);
  if constexpr (Policy::kThreadsPerRow > 32) {
    constexpr int kWarps = Policy::kThreadsPerRow / 32;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) x += scratch[warp];
  }
  return x;
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kBlockThreads)
    LayerNormKernel(const __grid_constant__ LayerNormArgs args) {
  using T = typename Policy::Type;
  using Access = LayerNormAccess<Policy>;
  constexpr int kThreads = Policy::kThreadsPerRow;
  __shared__ float scratch[2][kThreads / 32];
  ptx::GridDependencyLaunch();
  const int64_t row = int64_t{blockIdx.x} * Policy::kRowsPerBlock + threadIdx.x / kThreads;
  const int member = threadIdx.x % kThreads;
  const int accesses = args.hidden_size / Policy::kWidth;
  const Access* weight = static_cast<const Access*>(args.weight);
  const Access* bias = static_cast<const Access*>(args.bias);
  Access first_weight, first_bias;
  if (member < accesses) {
    first_weight = weight[member];
    first_bias = bias[member];
  }
  ptx::GridDependencyWait();
  // Rows end here by whole warps, and only where no barrier follows: with one row a warp.
  if (row >= args.num_tokens) return;

  // x and out may be one tensor, so neither is restrict and all are plain loads. A thread stores
  // only after every thread of its row has read it twice, and reads again only what it stores.
  const Access* x =
      reinterpret_cast<const Access*>(static_cast<const T*>(args.x) + row * args.x_stride);
  Access* out = reinterpret_cast<Access*>(static_cast<T*>(args.out) + row * args.out_stride);
  float sum = 0;
#pragma unroll 4
  for (int i = member; i < accesses; i += kThreads) {
    const Access s = x[i];
#pragma unroll
    for (int e = 0; e < Policy::kWidth; ++e) sum += ToFloat(s.at[e]);
  }
  const float size = static_cast<float>(args.hidden_size);
  const float mean = LayerNormRowSum<Policy>(sum, scratch[0]) / size;

  float squares = 0;
#pragma unroll 4
  for (int i = member; i < accesses; i += kThreads) {
    const Access s = x[i];
#pragma unroll
    for (int e = 0; e < Policy::kWidth; ++e) {
      const float difference = ToFloat(s.at[e]) - mean;
      squares = fmaf(difference, difference, squares);
    }
  }
  const float variance = LayerNormRowSum<Policy>(squares, scratch[1]) / size;
  const float scale = rsqrtf(variance + args.eps);

  const auto store = [&](int i, const Access& w, const Access& b) {
    Access s = x[i];
#pragma unroll
    for (int e = 0; e < Policy::kWidth; ++e) {
      const float n = (ToFloat(s.at[e]) - mean) * scale;
      s.at[e] = FromFloat<T>(fmaf(n, ToFloat(w.at[e]), ToFloat(b.at[e])));
    }
    out[i] = s;
  };
  if (member < accesses) store(member, first_weight, first_bias);
#pragma unroll 2
  for (int i = member + kThreads; i < accesses; i += kThreads) store(i, weight[i], bias[i]);
}

}  // namespace tokline
