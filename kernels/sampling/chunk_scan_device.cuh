// First kernel: reads every logit once.
//
// Grid: as many blocks as run at once, at most one per chunk of kSamplingChunk logits of a row; a
//   block takes every grid-th chunk. Each thread holds 16 logits of a chunk in registers while
//   those of the block's next chunk are being loaded. The kernel stores the chunk's best logit; for
//   sampled rows without top-k, also the chunk's mass relative to that logit; for top-k or top-p,
//   the maximum of each group of 32. Greedy rows whose best logits are known are skipped.
// Shared memory: a value per warp. Barriers per chunk: one for the best, one for the mass.
// Dependent launch: nothing is read before the wait, since rules and logits belong to the step.
#pragma once

#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/sampling/logits_device.cuh"

namespace tokline {

// Whether the rule keeps only the largest k logits.
__device__ __forceinline__ bool HasTopK(const SamplingRule& rule, int64_t vocab_size) {
  return rule.top_k > 0 && rule.top_k < vocab_size;
}

__device__ __forceinline__ bool NeedsThreshold(const SamplingRule& rule, int64_t vocab_size) {
  return HasTopK(rule, vocab_size) || rule.top_p < 1;
}

// The part of a chunk that a thread holds.
struct ScannedChunk {
  static constexpr int kVectors = kSamplingChunk / (4 * kChunkScanThreads);
  static constexpr int kStride = 4 * kChunkScanThreads;  // from a vector to the next

  int32_t row = 0, chunk = 0, first = 0;
  float4 x[kVectors];

  // Locates the chunk with this number among all rows', and loads it. Returns false if the row
  // needs no scan.
  __device__ __forceinline__ bool Load(const SamplingParams& params, const SamplingPlan& plan,
                                       int32_t number) {
    row = number / plan.num_chunks;
    chunk = number - row * plan.num_chunks;
    first = chunk * kSamplingChunk + static_cast<int32_t>(threadIdx.x) * 4;
    if (params.best != nullptr && !(params.rules[row].temperature > 0)) return false;
    const float* const logits = params.logits + row * params.logits_stride;
    const auto vocab_size = static_cast<int32_t>(params.vocab_size);
    // A chunk that is not the last of its row needs one test for all its loads.
    if (plan.vector_loads && (chunk + 1) * kSamplingChunk <= vocab_size) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        x[v] = *reinterpret_cast<const float4*>(logits + first + v * kStride);
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        x[v] = LoadRaw(logits, first + v * kStride, vocab_size, plan.vector_loads);
      }
    }
    return true;
  }
};

// One value per warp. Scanned chunks use two sets in turn, so that one barrier per value suffices.
struct ScanStorage {
  uint64_t bests[kChunkScanThreads / 32], masses[kChunkScanThreads / 32];
};

__device__ __forceinline__ void ScanChunk(const SamplingParams& params, const SamplingPlan& plan,
                                          const ScannedChunk& held, ScanStorage& storage) {
  constexpr int kVectors = ScannedChunk::kVectors, kWarps = kChunkScanThreads / 32;
  constexpr int kGroupLanes = kSamplingGroup / 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const SamplingRule rule = params.rules[held.row];
  float value = held.x[0].x;
  int32_t id = held.first;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // ids ascend, so an equal logit never displaces a lower id
      const float candidate = Component(held.x[v], i);
      if (candidate > value) {
        value = candidate;
        id = held.first + v * ScannedChunk::kStride + i;
      }
    }
  }
  const uint64_t of_warp = WarpBest(value, id);
  if (threadIdx.x % 32 == 0) storage.bests[warp] = of_warp;
  __syncthreads();
  ChunkStats& stats = plan.stats[int64_t{held.row} * plan.num_chunks + held.chunk];
  uint64_t best = storage.bests[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) best = Max64()(best, storage.bests[w]);
  if (threadIdx.x == 0) stats.best = best;
  if (!(rule.temperature > 0)) return;  // uniform across the block

  if (!HasTopK(rule, params.vocab_size)) {
    const MassOf mass_of(BestLogit(best), rule.temperature);
    uint64_t mass = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mass += mass_of(Component(held.x[v], i));
    }
    mass = WarpSum(mass);
    if (threadIdx.x % 32 == 0) storage.masses[warp] = mass;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kWarps; ++w) mass += storage.masses[w];
      stats.mass = mass;
    }
  }

  if (!NeedsThreshold(rule, params.vocab_size)) return;
  float* const maxima = plan.group_maxima + int64_t{held.row} * plan.num_groups;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const float4& x = held.x[v];
    float maximum = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
#pragma unroll
    for (int offset = kGroupLanes / 2; offset > 0; offset /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
    }
    if (threadIdx.x % kGroupLanes == 0) {
      maxima[(held.first + v * ScannedChunk::kStride) / kSamplingGroup] = maximum;
    }
  }
}

__global__ void __launch_bounds__(kChunkScanThreads, kChunkScanBlocks)
    ChunkScanKernel(const __grid_constant__ SamplingParams params,
                    const __grid_constant__ SamplingPlan plan) {
  __shared__ ScanStorage storage[2];
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const auto chunks = static_cast<int32_t>(params.num_rows) * plan.num_chunks;
  const auto step = static_cast<int32_t>(gridDim.x);
  ScannedChunk next;
  auto number = static_cast<int32_t>(blockIdx.x);
  bool scans = next.Load(params, plan, number);
  int turn = 0;
  while (number < chunks) {
    ScannedChunk held = next;
    const bool scans_held = scans;
    number += step;
    if (number < chunks) scans = next.Load(params, plan, number);
    if (!scans_held) continue;
    for (float4& x : held.x) x = Sanitize(x);
    ScanChunk(params, plan, held, storage[turn]);
    turn ^= 1;  // not for skipped chunks: no barrier has come in between
  }
}

}  // namespace tokline
