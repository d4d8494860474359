// RMSNorm, optionally after adding a residual, and LayerNorm over rows.
//
// Grid: one block of 256 threads per row, or one warp per row with 4 rows per block (many short
// rows). After the first pass the row is read again from L1: if it were held in registers, the
// compiler would keep bf16 rows unpacked, which costs occupancy or spills. LayerNorm takes a second
// pass for the variance around the mean.
// Shared memory: the block's sums. Barriers: two, with one block per row.
// A thread's first weight and bias are loaded before the grid-dependency wait, everything else
// after it.
#pragma once

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/norm/norm.h"

namespace tokline {

// Either 32 threads per row (kRowsPerBlock rows per block) or a whole block; kWidth elements per
// access.
template <NormKind kNormKind, typename T, int kElements, int kThreads>
struct NormPolicy {
  using Type = T;
  static constexpr NormKind kKind = kNormKind;
  static constexpr int kWidth = kElements;
  static constexpr int kThreadsPerRow = kThreads;
  static constexpr int kRowsPerBlock = kThreads == 32 ? 4 : 1;
  static constexpr int kBlockThreads = kThreads * kRowsPerBlock;
  static constexpr int kBatch = 4;  // accesses in flight per thread
};

// kWidth neighbouring elements, moved in one access.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Elements {
  T at[kWidth];
};

template <typename Policy>
using NormAccess = Elements<typename Policy::Type, Policy::kWidth>;

// The weight that multiplies a normalised value and, for LayerNorm, the bias that is added to it.
template <typename Policy>
struct NormWeights {
  using Access = NormAccess<Policy>;
  Access weight, bias;

  __device__ __forceinline__ NormWeights() {}
  __device__ __forceinline__ NormWeights(const NormParams& params, int i)
      : weight(static_cast<const Access*>(params.weight)[i]) {
    if constexpr (Policy::kKind == NormKind::kLayer) {
      bias = static_cast<const Access*>(params.bias)[i];
    }
  }
};

template <typename Policy>
class NormRow {
 public:
  using T = typename Policy::Type;
  using Access = NormAccess<Policy>;

  __device__ __forceinline__ NormRow(const NormParams& params, int64_t row)
      : x_(At(params.x, row * params.x_stride)),
        add_(At(params.add, row * params.add_stride)),
        residual_(At(params.residual_out, row * params.residual_out_stride)),
        out_(At(params.out, row * params.out_stride)),
        has_add_(Policy::kKind == NormKind::kRms && params.add != nullptr) {}

  // The sum that is normalised. With `add` it is rounded and stored.
  __device__ __forceinline__ Access Sum(int i) const {
    Access s = x_[i];
    if (has_add_) {
      const Access a = add_[i];
#pragma unroll
      for (int e = 0; e < Policy::kWidth; ++e) {
        s.at[e] = FromFloat<T>(ToFloat(s.at[e]) + ToFloat(a.at[e]));
      }
      residual_[i] = s;
    }
    return s;
  }

  // The same sum again: either this thread has stored it, or x still holds it.
  __device__ __forceinline__ Access SumAgain(int i) const {
    return has_add_ ? residual_[i] : x_[i];
  }

  // RMSNorm rounds the normalised value before the weight is applied, LayerNorm only the result.
  __device__ __forceinline__ void Store(int i, const NormWeights<Policy>& weights, float mean,
                                        float scale) const {
    Access s = SumAgain(i);
#pragma unroll
    for (int e = 0; e < Policy::kWidth; ++e) {
      const float weight = ToFloat(weights.weight.at[e]);
      if constexpr (Policy::kKind == NormKind::kRms) {
        const float n = Round<T>(ToFloat(s.at[e]) * scale);
        s.at[e] = FromFloat<T>(n * weight);
      } else {
        const float n = (ToFloat(s.at[e]) - mean) * scale;
        s.at[e] = FromFloat<T>(fmaf(n, weight, ToFloat(weights.bias.at[e])));
      }
    }
    out_[i] = s;
  }

 private:
  static __device__ __forceinline__ Access* At(const void* base, int64_t offset) {
    return reinterpret_cast<Access*>(static_cast<T*>(const_cast<void*>(base)) + offset);
  }

  // x, add, residual and out may be the same tensor, so no pointer is restrict and all loads are
  // plain. A thread stores to out only after every thread of its row has read the row for the
  // statistics, and from then on reads only elements that it stores itself.
  const Access* x_;
  const Access* add_;
  Access* residual_;
  Access* out_;
  bool has_add_;
};

template <typename T, int kWidth>
__device__ __forceinline__ float SumOfSquares(const Elements<T, kWidth>& s) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const float value = ToFloat(s.at[e]);
    sum = fmaf(value, value, sum);
  }
  return sum;
}

// Sums over the threads of a row; each of them gets the sum. Each kCall has its own shared memory.
// The two kinds add in different orders, so the last bits of their results differ.
template <typename Policy, int kCall>
__device__ __forceinline__ float RowSum(float x) {
  if constexpr (Policy::kThreadsPerRow == 32) {
    return WarpSum(x);
  } else if constexpr (Policy::kKind == NormKind::kRms) {
    using Reduce = cub::BlockReduce<float, Policy::kBlockThreads>;
    __shared__ typename Reduce::TempStorage storage;
    __shared__ float total;
    const float sum = Reduce(storage).Sum(x);
    if (threadIdx.x == 0) total = sum;
    __syncthreads();
    return total;
  } else {
    constexpr int kWarps = Policy::kThreadsPerRow / 32;
    __shared__ float sums[kWarps];
    x = WarpSum(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) x += sums[warp];
    return x;
  }
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kBlockThreads)
    NormKernel(const __grid_constant__ NormParams params) {
  using Access = NormAccess<Policy>;
  constexpr int kThreads = Policy::kThreadsPerRow, kBatch = Policy::kBatch;
  ptx::GridDependencyLaunch();
  const int64_t row = int64_t{blockIdx.x} * Policy::kRowsPerBlock + threadIdx.x / kThreads;
  const int member = threadIdx.x % kThreads;
  const int32_t hidden_size = static_cast<int32_t>(params.hidden_size);
  const int accesses = hidden_size / Policy::kWidth;
  NormWeights<Policy> first_weights;
  if (member < accesses) first_weights = NormWeights<Policy>(params, member);
  ptx::GridDependencyWait();
  // Only whole warps return here, and only with one warp per row, where no barrier follows.
  if (row >= params.num_tokens) return;

  const NormRow<Policy> tensors(params, row);
  const float size = static_cast<float>(hidden_size);
  float mean = 0, squares = 0;
  if constexpr (Policy::kKind == NormKind::kRms) {
#pragma unroll 1
    for (int first = member; first < accesses; first += kBatch * kThreads) {
      Access batch[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kThreads;
        if (i < accesses) batch[b] = tensors.Sum(i);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (first + b * kThreads < accesses) squares += SumOfSquares(batch[b]);
      }
    }
  } else {
    // These are simple loops because batches would cost 30 more registers here.
    float sum = 0;
#pragma unroll 4
    for (int i = member; i < accesses; i += kThreads) {
      const Access s = tensors.Sum(i);
#pragma unroll
      for (int e = 0; e < Policy::kWidth; ++e) sum += ToFloat(s.at[e]);
    }
    mean = RowSum<Policy, 0>(sum) / size;
#pragma unroll 4
    for (int i = member; i < accesses; i += kThreads) {
      const Access s = tensors.Sum(i);
#pragma unroll
      for (int e = 0; e < Policy::kWidth; ++e) {
        const float difference = ToFloat(s.at[e]) - mean;
        squares = fmaf(difference, difference, squares);
      }
    }
  }
  const float scale = rsqrtf(RowSum<Policy, 1>(squares) / size + params.eps);

  if (member < accesses) tensors.Store(member, first_weights, mean, scale);
#pragma unroll 2
  for (int i = member + kThreads; i < accesses; i += kThreads) {
    tensors.Store(i, NormWeights<Policy>(params, i), mean, scale);
  }
}

}  // namespace tokline
