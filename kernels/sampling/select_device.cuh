// Selection by a block: finds the largest threshold at which the weight of the values at or above
// it reaches a target. The interval that holds the threshold is divided into kSelectBins equal
// bins, the weights are added up per bin, and the bin in which the running sum crosses the target
// becomes the next interval, until it is a single float; this usually takes three rounds. Bins are
// linear in the value, not in its bits, because logits crowd into a few exponents. Weights are
// integers, so the result does not depend on the order of the atomics.
#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "kernels/sampling/logits_device.cuh"

namespace tokline {

inline constexpr int kPickThreads = 1024;
inline constexpr int kSelectBins = 2 * kPickThreads;  // two per thread

using PickReduce = cub::BlockReduce<uint64_t, kPickThreads>;
using PickScan = cub::BlockScan<uint64_t, kPickThreads, cub::BLOCK_SCAN_WARP_SCANS>;

struct SelectStorage {
  union {
    typename PickReduce::TempStorage reduce;
    typename PickScan::TempStorage scan;
  } cub;
  uint64_t bins[kSelectBins];
  uint64_t shared;  // passes a result from one thread to all
  int32_t bin;      // -1: the target is not reached
};

struct Selection {
  float threshold;
  bool reached;  // false: the total weight is below the target, and threshold is `lowest`
};

// Returns the sum to every thread. There is a barrier before and after its use of the storage.
__device__ __forceinline__ uint64_t BlockSum(SelectStorage& storage, uint64_t value) {
  __syncthreads();
  value = PickReduce(storage.cub.reduce).Sum(value);
  if (threadIdx.x == 0) storage.shared = value;
  __syncthreads();
  return storage.shared;
}

// Finds the threshold over the values in [lowest, highest] of `source`, which has ForEach(visit).
// `weight` maps a value to its integer weight. Stops early at an inexact threshold as soon as the
// weight at or above it is at most `acceptable`; 0 requests the exact one. All threads get the
// result.
template <typename Source, typename Weight>
__device__ Selection SelectThreshold(SelectStorage& storage, const Source& source,
                                     const Weight& weight, float highest, float lowest,
                                     uint64_t target, uint64_t acceptable) {
  float high = highest, low = lowest;
  while (low < high) {
    const double range = static_cast<double>(high) - low;
    const double inverse_width = kSelectBins / range;
    __syncthreads();  // the previous round's bins and results have been read
    for (int i = threadIdx.x; i < kSelectBins; i += kPickThreads) storage.bins[i] = 0;
    if (threadIdx.x == 0) storage.bin = -1;
    __syncthreads();

    uint64_t above = 0;  // weight of the values above the interval
    uint64_t run = 0;    // not yet added to run_bin: neighbours often share a bin
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
        if (run > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&storage.bins[run_bin]), run);
        run_bin = bin;
        run = 0;
      }
      run += weight(value);
    });
    if (run > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&storage.bins[run_bin]), run);
    above = BlockSum(storage, above);

    const uint64_t first = storage.bins[2 * threadIdx.x];
    const uint64_t second = storage.bins[2 * threadIdx.x + 1];
    uint64_t before;
    PickScan(storage.cub.scan).ExclusiveSum(first + second, before);
    before += above;
    if (before < target && before + first + second >= target) {  // true on at most one thread
      const bool in_first = before + first >= target;
      storage.bin = static_cast<int32_t>(2 * threadIdx.x) + (in_first ? 0 : 1);
      storage.shared = before + first + (in_first ? 0 : second);
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
