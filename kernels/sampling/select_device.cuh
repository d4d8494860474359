// Selection by a block: finds the largest threshold at which the weight of the values at or above
// it reaches a target. The interval that holds the threshold is divided into kSelectBins equal
// bins, the weights are added up per bin, and the bin in which the running sum crosses the target
// becomes the next interval, until it is a single float; this usually takes three rounds. Bins are
// linear in the value, not in its bits, because logits crowd into a few exponents. Weights are
// integers, so the result does not depend on the order of the atomics.
#pragma once

#include <cstdint>

#include "kernels/sampling/logits_device.cuh"

namespace tokline {

inline constexpr int kPickThreads = 1024, kPickWarps = kPickThreads / 32;
static_assert(kPickWarps <= 32, "a lane has a warp's sum");
inline constexpr int kBinsOfThread = 2;
inline constexpr int kSelectBins = kBinsOfThread * kPickThreads;

// Sums and bins of weights: counts are 32-bit, masses 64-bit.
struct SelectStorage {
  uint64_t sums[kPickWarps];     // of ExclusiveSum
  uint64_t reduced[kPickWarps];  // of BlockReduce
  uint64_t bins[kSelectBins];
  uint64_t shared;  // passes a result from one thread to all
  int32_t bin;      // -1: the target is not reached
};

struct Selection {
  float threshold;
  bool reached;  // false: the total weight is below the target, and threshold is `lowest`
};

// Returns the sum of the values of all threads before this one, and the total. The whole block
// calls this, and must pass a barrier between two calls.
template <typename Sum>
__device__ __forceinline__ Sum ExclusiveSum(SelectStorage& storage, Sum value, Sum& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto inclusive = [lane](Sum sum) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const Sum other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    return sum;
  };
  const Sum of_warp = inclusive(value);
  if (lane == 31) storage.sums[warp] = of_warp;
  __syncthreads();
  const Sum of_block = inclusive(lane < kPickWarps ? static_cast<Sum>(storage.sums[lane]) : Sum{0});
  total = __shfl_sync(0xffffffffu, of_block, 31);
  const Sum before = __shfl_sync(0xffffffffu, of_block, warp > 0 ? warp - 1 : 0);
  return (warp > 0 ? before : 0) + of_warp - value;
}

// Combines the values of all threads by `op`, for which 0 changes nothing; every thread gets the
// result. The whole block calls this, and must pass a barrier between two calls.
template <typename Op>
__device__ __forceinline__ uint64_t BlockReduce(SelectStorage& storage, uint64_t value,
                                                const Op& op) {
  const auto of_warp = [&op](uint64_t x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
    }
    return x;
  };
  value = of_warp(value);
  if (threadIdx.x % 32 == 0) storage.reduced[threadIdx.x / 32] = value;
  __syncthreads();
  return of_warp(threadIdx.x % 32 < kPickWarps ? storage.reduced[threadIdx.x % 32] : 0);
}

struct Sum64 {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

__device__ __forceinline__ uint64_t BlockSum(SelectStorage& storage, uint64_t value) {
  return BlockReduce(storage, value, Sum64());
}

// Adds to a bin in shared memory. There an atomic addition of 64 bits is a loop, in which lanes
// with the same bin wait for each other; two of 32 bits and a carry are not.
__device__ __forceinline__ void AddToBin(uint32_t* bin, uint32_t weight) { atomicAdd(bin, weight); }
__device__ __forceinline__ void AddToBin(uint64_t* bin, uint64_t weight) {
  auto* const halves = reinterpret_cast<uint32_t*>(bin);
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t carry = atomicAdd(&halves[0], low) + low < low;
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + carry;
  if (high > 0) atomicAdd(&halves[1], high);
}

__device__ __forceinline__ void ClearBins(SelectStorage& storage) {
  for (int i = threadIdx.x; i < kSelectBins; i += kPickThreads) storage.bins[i] = 0;
  if (threadIdx.x == 0) storage.bin = -1;
}

// Finds the threshold over the values in [lowest, highest] of `source`, which has ForEach(visit).
// `weight` maps a value to its integer weight. Stops early at an inexact threshold as soon as the
// weight at or above it is at most `acceptable`; 0 requests the exact one. All threads get the
// result. `cleared` says that the bins are already cleared and that a barrier has followed.
template <typename Source, typename Weight>
__device__ Selection SelectThreshold(SelectStorage& storage, const Source& source,
                                     const Weight& weight, float highest, float lowest,
                                     uint64_t target, uint64_t acceptable, bool cleared) {
  using Sum = decltype(weight(0.0f));
  Sum* const bins = reinterpret_cast<Sum*>(storage.bins);
  float high = highest, low = lowest;
  if (!cleared) {
    __syncthreads();  // the contents of the storage have been read
    ClearBins(storage);
    __syncthreads();
  }
  for (bool first_round = true; low < high; first_round = false) {
    const double range = static_cast<double>(high) - low;
    const double inverse_width = kSelectBins / range;

    Sum above = 0;  // weight of the values above the interval; 0 in the first round
    Sum run = 0;    // not yet added to run_bin: neighbours often share a bin
    int run_bin = 0;
    source.ForEach([&](float value) {
      if (!(value >= low)) return;
      if (value > high) {
        above += weight(value);
        return;
      }
      const int bin = min(static_cast<int>((static_cast<double>(high) - value) * inverse_width),
                          kSelectBins - 1);
      if (bin != run_bin) {
        if (run > 0) AddToBin(&bins[run_bin], run);
        run_bin = bin;
        run = 0;
      }
      run += weight(value);
    });
    if (run > 0) AddToBin(&bins[run_bin], run);
    uint64_t all_above = 0;
    if (first_round) {
      __syncthreads();
    } else {
      all_above = BlockSum(storage, above);  // has a barrier
    }
    Sum own[kBinsOfThread], sum = 0, total;
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i) {
      own[i] = bins[kBinsOfThread * threadIdx.x + i];
      bins[kBinsOfThread * threadIdx.x + i] = 0;  // for the next round
      sum += own[i];
    }
    uint64_t up_to = all_above + ExclusiveSum(storage, sum, total);
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i) {
      const uint64_t before = up_to;
      up_to += own[i];
      if (before >= target || up_to < target) continue;  // all but one bin of the block
      storage.bin = static_cast<int32_t>(kBinsOfThread * threadIdx.x) + i;
      storage.shared = up_to;
    }
    __syncthreads();
    if (storage.bin < 0) return {low, false};  // only the first round can reach this

    // The bin's edges, widened by more than the rounding of `bin` above and rounded to the nearest
    // float, still enclose every value of the bin. Once a bin is narrower than an ulp, both edges
    // meet in it.
    const double width = range / kSelectBins;
    const double slack = 1e-14 * (range + fabs(static_cast<double>(high)));
    const double top = static_cast<double>(high) - storage.bin * width;
    low = fmaxf(low, static_cast<float>(top - width - slack));
    high = fminf(high, static_cast<float>(top + slack));
    if (storage.shared <= acceptable) return {low, true};
  }
  return {high, true};
}

}  // namespace tokline
