// First kernel: reads every logit once.
//
// Grid: one block per chunk of kSamplingChunk logits of a row. Each thread holds 16 of them in
//   registers, with all loads in flight. The kernel stores the chunk's best logit and, for sampled
//   rows, the chunk's mass relative to that logit; for top-k or top-p it also stores the maximum of
//   each group of 32. Blocks of greedy rows whose best logits are known end at once.
// Shared memory: CUB's block reduction and the chunk's best.
// Barriers: one within each reduction, one to share the best.
// Dependent launch: nothing is read before the wait, since rules and logits belong to the step.
#pragma once

#include <cub/block/block_reduce.cuh>

#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/sampling/logits_device.cuh"

namespace tokline {

inline constexpr int kChunkScanThreads = 256;

__device__ __forceinline__ bool NeedsThreshold(const SamplingRule& rule, int64_t vocab_size) {
  return (rule.top_k > 0 && rule.top_k < vocab_size) || rule.top_p < 1;
}

__global__ void __launch_bounds__(kChunkScanThreads)
    ChunkScanKernel(const __grid_constant__ SamplingParams params,
                    const __grid_constant__ SamplingPlan plan) {
  constexpr int kVectors = kSamplingChunk / (4 * kChunkScanThreads);
  constexpr int kGroupLanes = kSamplingGroup / 4;
  using BlockReduce = cub::BlockReduce<uint64_t, kChunkScanThreads>;
  __shared__ typename BlockReduce::TempStorage best_storage, mass_storage;
  __shared__ uint64_t shared_best;
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();

  const int32_t row = static_cast<int32_t>(blockIdx.x / plan.num_chunks);
  const int32_t chunk = static_cast<int32_t>(blockIdx.x % plan.num_chunks);
  if (params.best != nullptr && !(params.rules[row].temperature > 0)) return;
  const int32_t vocab_size = static_cast<int32_t>(params.vocab_size);
  const float* const logits = params.logits + row * params.logits_stride;
  const int32_t first = chunk * kSamplingChunk + static_cast<int32_t>(threadIdx.x) * 4;
  float4 x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    x[v] = LoadLogits(logits, first + v * 4 * kChunkScanThreads, vocab_size, plan.vector_loads);
  }
  const SamplingRule rule = params.rules[row];

  float value = x[0].x;
  int32_t id = first;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // ids ascend, so an equal logit never displaces a lower id
      const float candidate = Component(x[v], i);
      if (candidate > value) {
        value = candidate;
        id = first + v * 4 * kChunkScanThreads + i;
      }
    }
  }
  const uint64_t best = BlockReduce(best_storage).Reduce(PackBest(value, id), Max64());
  ChunkStats& stats = plan.stats[int64_t{row} * plan.num_chunks + chunk];
  if (threadIdx.x == 0) {
    stats.best = best;
    shared_best = best;
  }
  if (!(rule.temperature > 0)) return;  // uniform across the block
  __syncthreads();

  const MassOf mass_of(BestLogit(shared_best), rule.temperature);
  uint64_t mass = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) mass += mass_of(Component(x[v], i));
  }
  mass = BlockReduce(mass_storage).Sum(mass);
  if (threadIdx.x == 0) stats.mass = mass;

  if (!NeedsThreshold(rule, vocab_size)) return;
  float* const maxima = plan.group_maxima + int64_t{row} * plan.num_groups;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float maximum = fmaxf(fmaxf(x[v].x, x[v].y), fmaxf(x[v].z, x[v].w));
#pragma unroll
    for (int offset = kGroupLanes / 2; offset > 0; offset /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
    }
    if (threadIdx.x % kGroupLanes == 0) {
      maxima[(first + v * 4 * kChunkScanThreads) / kSamplingGroup] = maximum;
    }
  }
}

}  // namespace tokline
