// Linear for up to 128 tokens and fp32 outputs of a weight with many rows, such as an LM head, on
// sm_90a: tokens are the rows of wgmma, weight rows its columns.
//
// Grid: one block per SM. Each has an equal share of the weight's rows, in units of 32, and takes
//   them in tiles of 128. The rest of a share is a smaller tile; its unused columns are multiplied
//   with the old contents of the ring and dropped.
// Block: two warpgroups, which share a tile's weight rows (64 tokens) or the tokens (128), and a
//   producer warp whose first lane issues copies.
// Shared memory: a ring whose stages hold 64 k of a tile's weights and of all tokens, with the
//   128-byte swizzle. It continues across tiles, so that the memory streams while a tile is
//   finished. Rows after the last token keep their old contents; their sums are never read.
// Dependent launch: the first weights are on their way before the wait.
// Outputs: a thread stores what it accumulated, eight bytes at a time, so that four lanes fill a
//   sector. For each of its two tokens it keeps the largest output across all tiles.
#pragma once

#include <cuda.h>

#include <cmath>
#include <cstdint>

#include "kernels/device/copy_ring.cuh"
#include "kernels/device/packed_best.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cache_policy.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/linear/head_plan.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/stage_products_device.cuh"

namespace tokline {

// Maps: `weight` {64, rows, K / 64} with boxes of kHeadUnit rows; `x` {64, tokens, K / 64} with
// boxes of all tokens.
struct HeadArgs {
  LinearParams params;
  HeadPlan plan;
  CUtensorMap weight, x;
};

template <typename T, int kTokensValue>
struct HeadPolicy {
  using Type = T;
  static constexpr int kTokens = kTokensValue;
  static constexpr bool kSharesTokens = kTokens > 64;                         // or weight rows
  static constexpr int kColumns = kSharesTokens ? kHeadRows : kHeadRows / 2;  // of a warpgroup
  static constexpr int kConsumers = 128 * kHeadConsumerGroups;
  static constexpr int kRowBytes = 2 * kHeadBlockK;
  static constexpr int kUnitBytes = kHeadUnit * kRowBytes;
  static constexpr int kWeightBytes = kHeadRows * kRowBytes, kXBytes = kTokens * kRowBytes;
};

// A block's part of the work, and its tiles one after another.
struct HeadShare {
  int first_unit, end_unit;

  __device__ __forceinline__ explicit HeadShare(const HeadPlan& plan)
      : first_unit(First(plan, blockIdx.x)), end_unit(First(plan, blockIdx.x + 1)) {}

  static __device__ __forceinline__ int First(const HeadPlan& plan, unsigned block) {
    return static_cast<int>(int64_t{block} * plan.units / plan.grid);
  }
};

inline constexpr int kHeadUnits = kHeadRows / kHeadUnit;  // per tile

// The producer's only active lane.
template <typename Policy>
__device__ __forceinline__ void ProduceHead(const HeadArgs& args, const HeadShare& share,
                                            const CopyRing& ring) {
  const int x_bytes = static_cast<int>(args.params.num_tokens) * Policy::kRowBytes;
  const bool evicted = args.params.num_tokens <= kHeadEvictedTokens;
  const uint64_t once = ptx::EvictFirstPolicy();
  const auto load_weight = [&](int first_unit, int block, int stage) {
    const int units = min(kHeadUnits, share.end_unit - first_unit);
    ptx::MbarrierArriveExpect(ring.Full(stage), units * Policy::kUnitBytes + x_bytes);
    for (int unit = 0; unit < units; ++unit) {
      const uint32_t to = ring.Stage(stage) + unit * Policy::kUnitBytes;
      const int row = (first_unit + unit) * kHeadUnit;
      if (evicted) {
        ptx::TensorCopyToShared(to, &args.weight, 0, row, block, ring.Full(stage), once);
      } else {
        ptx::TensorCopyToShared(to, &args.weight, 0, row, block, ring.Full(stage));
      }
    }
  };
  const auto load_x = [&](int block, int stage) {
    ptx::TensorCopyToShared(ring.Stage(stage) + Policy::kWeightBytes, &args.x, 0, 0, block,
                            ring.Full(stage));
  };
  const int early = min(args.plan.k_blocks, ring.stages);
  for (int block = 0; block < early; ++block) load_weight(share.first_unit, block, block);
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  for (int block = 0; block < early; ++block) load_x(block, block);
  RingPosition at{ring.stages, 0, 1};  // a stage's first use needs no wait
  for (int block = 0; block < early; ++block) at.Advance();
  for (int unit = share.first_unit; unit < share.end_unit; unit += kHeadUnits) {
    for (int block = unit == share.first_unit ? early : 0; block < args.plan.k_blocks; ++block) {
      ptx::MbarrierWait(ring.Empty(at.stage), at.phase);
      load_weight(unit, block, at.stage);
      load_x(block, at.stage);
      at.Advance();
    }
  }
}

// Computes the warpgroup's sums of a tile. They are laid out as in ptx/wgmma.cuh, with tokens as
// rows and weight rows as columns.
template <typename Policy>
__device__ __forceinline__ void MultiplyHead(int k_blocks, const CopyRing& ring, RingPosition& at,
                                             float (&sums)[Policy::kColumns / 2]) {
  const int group = threadIdx.x / 128;
  const int x_at =
      Policy::kWeightBytes + (Policy::kSharesTokens ? group * 64 * Policy::kRowBytes : 0);
  const int weight_at = Policy::kSharesTokens ? 0 : group * Policy::kColumns * Policy::kRowBytes;
  const int read = MultiplyStages<typename Policy::Type>(k_blocks, ring, x_at, weight_at, at, sums);
  if (threadIdx.x % 128 == 0) ptx::MbarrierArrive(ring.Empty(read));
}

// What a thread keeps for one of its tokens.
struct HeadToken {
  float* out = nullptr;  // null: nothing is stored
  float best = -INFINITY;
  int id;

  // Ids ascend, so an equal output never displaces a lower id. A NaN never wins.
  __device__ __forceinline__ void Compare(float value, int feature) {
    value = value > FLT_MAX ? FLT_MAX : value;
    if (value > best) {
      best = value;
      id = feature;
    }
  }
};

// Stores the thread's outputs of a tile, the first of which is `feature`, and compares them.
template <typename Policy>
__device__ __forceinline__ void FinishHead(const float (&sums)[Policy::kColumns / 2], int feature,
                                           int end, bool pairs, HeadToken (&rows)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    HeadToken& row = rows[half];
#pragma unroll
    for (int eight = 0; eight < Policy::kColumns / 8; ++eight) {
      const int at = feature + eight * 8;
      const float2 two{sums[eight * 4 + half * 2], sums[eight * 4 + half * 2 + 1]};
      if (at >= end) break;
      row.Compare(two.x, at);
      if (at + 1 < end) row.Compare(two.y, at + 1);
      if (row.out == nullptr) continue;
      if (pairs && at + 1 < end) {
        *reinterpret_cast<float2*>(row.out + at) = two;
      } else {
        row.out[at] = two.x;
        if (at + 1 < end) row.out[at + 1] = two.y;
      }
    }
  }
}

template <typename Policy>
__global__ void __launch_bounds__(kHeadThreads, 1)
    HeadLinearKernel(const __grid_constant__ HeadArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  const uint32_t data = (ptx::SharedAddress(memory) + 1023) & ~1023u;
  constexpr int kStageBytes = Policy::kWeightBytes + Policy::kXBytes;
  const LinearParams& params = args.params;
  const HeadShare share(args.plan);
  const CopyRing ring{.data = data,
                      .barriers = data + args.plan.stages * kStageBytes,
                      .stages = args.plan.stages,
                      .stage_bytes = kStageBytes};
  if (threadIdx.x == Policy::kConsumers) {
    ring.Init(kHeadConsumerGroups);
    ptx::FenceMbarrierInit();
  }
  __syncthreads();
  if (threadIdx.x >= Policy::kConsumers) {
    if (threadIdx.x == Policy::kConsumers) ProduceHead<Policy>(args, share, ring);
    return;
  }
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int first_column = (Policy::kSharesTokens ? 0 : group * Policy::kColumns) + lane % 4 * 2;
  const int first_token = (Policy::kSharesTokens ? group * 64 : 0) + warp * 16 + lane / 4;
  const int end = min(share.end_unit * kHeadUnit, static_cast<int>(params.out_features));
  float* const out = static_cast<float*>(params.out);
  const bool pairs =
      (reinterpret_cast<uintptr_t>(out) | params.out_stride * sizeof(float)) % 8 == 0;
  ptx::GridDependencyWait();  // for only_best, and before outputs are stored
  HeadToken rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first_token + half * 8;
    rows[half].id = share.first_unit * kHeadUnit + first_column;
    if (token >= params.num_tokens) continue;
    if (params.only_best && params.only_best[token] != 0) continue;
    rows[half].out = out + token * params.out_stride;
  }
  RingPosition at{ring.stages};
  float sums[Policy::kColumns / 2];
#pragma unroll 1
  for (int unit = share.first_unit; unit < share.end_unit; unit += kHeadUnits) {
    MultiplyHead<Policy>(args.plan.k_blocks, ring, at, sums);
    FinishHead<Policy>(sums, unit * kHeadUnit + first_column, end, pairs, rows);
  }
  if (params.best == nullptr) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first_token + half * 8;
    uint64_t best = PackBest(rows[half].best + 0.0f, rows[half].id);
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      const uint64_t other = __shfl_xor_sync(0xffffffffu, best, offset);
      best = other > best ? other : best;
    }
    const int part = static_cast<int>(blockIdx.x) * args.plan.PartsOfBlock() +
                     (Policy::kSharesTokens ? 0 : group);
    if (token < params.num_tokens && lane % 4 == 0) {
      params.best[int64_t{token} * args.plan.Parts() + part] = best;
    }
  }
#endif
}

}  // namespace tokline
