// RMSNorm over rows, optionally after adding a residual.
//
// Grid: a block of 256 threads takes a row, or each of its 4 warps takes one (short rows, many of
// them). The scaling reads the row a second time, from L1: held in registers, bf16 rows are kept
// unpacked by the compiler, which costs occupancy or spills.
// Shared memory: that of the block reduction and one float. Barriers: two, with a block a row.
// A thread's first norm weights are loaded before the grid dependency, all else after it.
#pragma once

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline {

struct RmsNormArgs {
  const void* x;
  const void* add;  // or null
  const void* weight;
  void* residual_out;
  void* out;
  int64_t x_stride, add_stride, residual_out_stride, out_stride;
  int64_t num_tokens;
  int32_t hidden_size;
  float eps;
};

// Threads a row is 32 (kRowsPerBlock rows a block) or a whole block; kWidth elements an access.
template <typename T, int kElements, int kThreads>
struct RmsNormPolicy {
  using Type = T;
  static constexpr int kWidth = kElements;
  static constexpr int kThreadsPerRow = kThreads;
  static constexpr int kRowsPerBlock = kThreads == 32 ? 4 : 1;
  static constexpr int kBlockThreads = kThreads * kRowsPerBlock;
  static constexpr int kBatch = 4;  // accesses in flight a thread
};

// kWidth neighbouring elements, moved in one access.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Elements {
  T at[kWidth];
};

template <typename Policy>
class RmsNormRow {
 public:
  using T = typename Policy::Type;
  using Access = Elements<T, Policy::kWidth>;

  __device__ __forceinline__ RmsNormRow(const RmsNormArgs& args, int64_t row)
      : x_(At(args.x, row * args.x_stride)),
        add_(At(args.add, row * args.add_stride)),
        residual_(At(args.residual_out, row * args.residual_out_stride)),
        out_(At(args.out, row * args.out_stride)),
        has_add_(args.add != nullptr) {}

  // The sum that is normalised; with `add` it is rounded and stored.
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

  // The same sum once more: this thread stored it, or x still holds it.
  __device__ __forceinline__ Access SumAgain(int i) const {
    return has_add_ ? residual_[i] : x_[i];
  }

  __device__ __forceinline__ void Store(int i, Access s, Access weight, float inverse_rms) const {
#pragma unroll
    for (int e = 0; e < Policy::kWidth; ++e) {
      const float n = Round<T>(ToFloat(s.at[e]) * inverse_rms);
      s.at[e] = FromFloat<T>(n * ToFloat(weight.at[e]));
    }
    out_[i] = s;
  }

 private:
  static __device__ __forceinline__ Access* At(const void* base, int64_t offset) {
    return reinterpret_cast<Access*>(static_cast<T*>(const_cast<void*>(base)) + offset);
  }

  // x, add and residual may be one tensor, so none is restrict and all are plain loads.
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

// Sum over the threads of a row; every one of them gets it.
template <typename Policy>
__device__ __forceinline__ float RowSum(float x) {
  if constexpr (Policy::kThreadsPerRow == 32) {
    return WarpSum(x);
  } else {
    using Reduce = cub::BlockReduce<float, Policy::kBlockThreads>;
    __shared__ typename Reduce::TempStorage storage;
    __shared__ float total;
    const float sum = Reduce(storage).Sum(x);
    if (threadIdx.x == 0) total = sum;
    __syncthreads();
    return total;
  }
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kBlockThreads)
    RmsNormKernel(const __grid_constant__ RmsNormArgs args) {
  using Access = Elements<typename Policy::Type, Policy::kWidth>;
  constexpr int kThreads = Policy::kThreadsPerRow, kBatch = Policy::kBatch;
  ptx::GridDependencyLaunch();
  const int64_t row = int64_t{blockIdx.x} * Policy::kRowsPerBlock + threadIdx.x / kThreads;
  const int member = threadIdx.x % kThreads;
  const int accesses = args.hidden_size / Policy::kWidth;
  const Access* weight = static_cast<const Access*>(args.weight);
  Access first_weight;
  if (member < accesses) first_weight = weight[member];
  ptx::GridDependencyWait();
  // Rows end here by whole warps, and only where no barrier follows: with one row a warp.
  if (row >= args.num_tokens) return;

  const RmsNormRow<Policy> tensors(args, row);
  float sum = 0;
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
      if (first + b * kThreads < accesses) sum += SumOfSquares(batch[b]);
    }
  }
  sum = RowSum<Policy>(sum);
  const float inverse_rms = rsqrtf(sum / static_cast<float>(args.hidden_size) + args.eps);

  if (member < accesses) {
    tensors.Store(member, tensors.SumAgain(member), first_weight, inverse_rms);
  }
#pragma unroll 2
  for (int i = member + kThreads; i < accesses; i += kThreads) {
    tensors.Store(i, tensors.SumAgain(i), weight[i], inverse_rms);
  }
}

}  // namespace tokline
