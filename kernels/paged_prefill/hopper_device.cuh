// Paged prefill attention for sm_90a: wgmma with a producer and two consumer warpgroups.
// Grid: x = tile * num_kv_heads + KV head; tiles come longest first. A block owns 128 packed query
// rows of one KV head, a consumer 64 of them.
// Shared memory: the query tile; rings of two K tiles and two V tiles of 128 tokens, in wgmma's
// 128-byte swizzle; their mbarriers. The query tile's rows later stage their own output.
// Barriers: a ring's Full(stage) completes when all producer threads have seen their copies land
// and fenced them for wgmma, Empty(stage) when all consumer warps are done with the tile. The query
// tile comes with the first K tile. The producer publishes a tile after it has issued the next one;
// what it waits for before that depends on earlier tiles only, in the order K0 K1 V0 K2 V1 ...
// Consumers issue S = Q K^T of the next tile, then O += P V of the last, and do the softmax of the
// next under the latter. Named barriers let them take turns at issuing, so that one multiplies
// while the other exponentiates.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/ptx/set_max_registers.cuh"
#include "kernels/device/ptx/wgmma.cuh"
#include "kernels/paged_prefill/context_walk_device.cuh"
#include "kernels/paged_prefill/row_state_device.cuh"
#include "kernels/paged_prefill/tile_output_device.cuh"

namespace tokline {

// The launch bound of the kernel. Where wgmma cannot be compiled the kernel is empty, and its bound
// tells the launcher so.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kHopperPrefillLaunchBound = 384;
#else
inline constexpr int kHopperPrefillLaunchBound = 32;
#endif

template <DType kDType, int kHeadDimOfPolicy>
struct HopperPrefillPolicy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimOfPolicy;
  static constexpr int kGroupThreads = 128;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = kGroupThreads * (1 + kConsumers);
  static constexpr int kConsumerRows = kPagedPrefillTileRows / kConsumers;
  static constexpr int kKvTokens = 128;
  static constexpr int kStages = 2;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  using QueryPlacement = SwizzledPanels<kHeadDim * 2, kPagedPrefillTileRows>;
  using KvPlacement = SwizzledPanels<kHeadDim * 2, kKvTokens>;
  static constexpr int kQueryBytes = kPagedPrefillTileRows * kHeadDim * 2;
  static constexpr int kKvBytes = kKvTokens * kHeadDim * 2;
  static constexpr int kBarrierBytes = 2 * 2 * kStages * 8;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStages * kKvBytes + kBarrierBytes;
};

// K tiles or V tiles in shared memory, by use: use i takes stage i % kStages.
template <typename Policy>
struct HopperTileRing {
  uint32_t tiles;
  uint32_t barriers;

  __device__ uint32_t Tile(int use) const { return tiles + Stage(use) * Policy::kKvBytes; }
  __device__ void WaitFull(int use) const {
    ptx::MbarrierWait(barriers + Stage(use) * 8, Round(use));
  }
  __device__ uint32_t Full(int use) const { return barriers + Stage(use) * 8; }
  // The first round finds every stage empty.
  __device__ void WaitEmpty(int use) const { ptx::MbarrierWait(Empty(use), Round(use) ^ 1); }
  __device__ uint32_t Empty(int use) const { return barriers + (Policy::kStages + Stage(use)) * 8; }
  // One arrival a consumer warp.
  __device__ void Release(int use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(Empty(use));
  }
  __device__ void Init() const {
    for (int stage = 0; stage < Policy::kStages; ++stage) {
      ptx::MbarrierInit(Full(stage), Policy::kGroupThreads);
      ptx::MbarrierInit(Empty(stage), Policy::kConsumers * Policy::kGroupThreads / 32);
    }
  }

 private:
  __device__ static int Stage(int use) { return use % Policy::kStages; }
  __device__ static uint32_t Round(int use) { return use / Policy::kStages & 1; }
};

// Descriptor of a tile in 128-byte swizzled panels: 8 rows are 1024 bytes; `panel_bytes` is the way
// to the next 64 columns where they are the N dimension.
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t shared, uint32_t panel_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{panel_bytes >> 4} << 16 | (shared & 0x3ffff) >> 4;
}

// A consumer's 64 rows: the warp's 16 in accumulator fragments (ptx/wgmma.cuh).
template <typename Policy>
struct HopperConsumerTile {
  using T = typename Policy::T;
  static constexpr int kHeadDim = Policy::kHeadDim;
  static constexpr int kScores = Policy::kKvTokens / 2;  // accumulators a lane
  static constexpr int kOut = kHeadDim / 2;

  float scores[kScores];
  float out[kOut] = {};
  uint32_t weights[Policy::kKvTokens / 16][4];
  RowState rows[2];
  float correction[2];

  // Issues scores = Q K^T.
  __device__ __forceinline__ void IssueScores(uint64_t q, uint32_t k_tile) {
    const uint64_t k = WgmmaDescriptor(k_tile, 0);
    ptx::PinRegisters(scores);
    ptx::WgmmaFence();
#pragma unroll
    for (int depth = 0; depth < kHeadDim / 16; ++depth) {
      // 16 columns are 32 bytes of a panel's rows.
      const uint32_t q_step = depth / 4 * Policy::QueryPlacement::kPanelBytes + depth % 4 * 32;
      const uint32_t k_step = depth / 4 * Policy::KvPlacement::kPanelBytes + depth % 4 * 32;
      ptx::WgmmaM64N128K16<T>(scores, q + (q_step >> 4), k + (k_step >> 4), depth != 0);
    }
    ptx::WgmmaCommit();
  }

  // Issues out += P V.
  __device__ __forceinline__ void IssueValues(uint32_t v_tile) {
    const uint64_t v = WgmmaDescriptor(v_tile, Policy::KvPlacement::kPanelBytes);
    ptx::PinRegisters(out);
    ptx::WgmmaFence();
#pragma unroll
    for (int depth = 0; depth < Policy::kKvTokens / 16; ++depth) {
      const uint64_t rows16 = v + (depth * 16 * Policy::KvPlacement::kRowPitch >> 4);
      if constexpr (kHeadDim == 128) {
        ptx::WgmmaM64N128K16<T>(out, weights[depth], rows16);
      } else {
        ptx::WgmmaM64N64K16<T>(out, weights[depth], rows16);
      }
    }
    ptx::WgmmaCommit();
  }

  // Sets scores of tokens that a row does not see to -inf. `visible` is how many of the tile's
  // tokens each of the lane's rows sees.
  __device__ __forceinline__ void Mask(const int32_t (&visible)[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (column >= visible[i / 2 % 2]) scores[i] = -INFINITY;
    }
  }

  // Turns scores into weights, still fp32, and takes them into maxima and sums.
  __device__ __forceinline__ void Softmax(float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      RowState& row = rows[half];
      float max = row.max;
#pragma unroll
      for (int i = 2 * half; i < kScores; i += 4) {
        max = fmaxf(max, fmaxf(scores[i], scores[i + 1]));
      }
      max = QuadMax(max);
      const float offset = FiniteOffset<T>(max, scale_log2);
      correction[half] = ptx::Exp2(ExponentOffset<T>(row.max, scale_log2) - offset);
      row.max = max;
      float sum = 0;
#pragma unroll
      for (int i = 2 * half; i < kScores; i += 4) {
        scores[i] = ptx::Exp2(fmaf(scores[i], scale_log2, -offset));
        scores[i + 1] = ptx::Exp2(fmaf(scores[i + 1], scale_log2, -offset));
        sum += scores[i] + scores[i + 1];
      }
      row.sum = fmaf(row.sum, correction[half], sum);
    }
  }

  // ptxas would move the softmax below the wait that follows, and so out of the shadow of P V. What
  // hangs on its result, and never happens, holds it here.
  __device__ __forceinline__ void KeepSoftmaxHere() const {
    if (rows[0].sum + rows[1].sum < 0) __nanosleep(0);
  }

  // Scales `out` to the new maxima and rounds the weights; no wgmma may be using either.
  __device__ __forceinline__ void Rescale() {
    if (__any_sync(0xffffffffu, correction[0] != 1 || correction[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[i] *= correction[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      weights[i / 8][i / 2 % 4] = Pack2<T>(scores[i], scores[i + 1]);
    }
  }
};

// The producer warpgroup's part: the query tile, then all K and V tiles.
template <typename Policy>
__device__ __forceinline__ void ProduceTiles(const PagedPrefillParams& params,
                                             const QueryTile& tile, const PackedRows& packed,
                                             int32_t kv_head, uint32_t q_shared,
                                             const HopperTileRing<Policy>& k_ring,
                                             const HopperTileRing<Policy>& v_ring) {
  using T = typename Policy::T;
  const int thread = threadIdx.x;
  const T* keys = static_cast<const T*>(params.kv);
  const T* values = keys + params.layout.KvStride();
  const auto load = [&](uint32_t target, const T* pool, const KvTile& kv_tile) {
    LoadKvTile<T, Policy::kHeadDim, Policy::kKvTokens, Policy::kGroupThreads,
               typename Policy::KvPlacement>(target, pool, params.layout, params.table.chunk_pages,
                                             kv_tile, kv_head, thread);
    ptx::CpAsyncCommit();
  };
  const auto publish = [](uint32_t full) {
    ptx::FenceProxyAsyncShared();
    ptx::MbarrierArrive(full);
  };

  ContextWalk<Policy::kKvTokens> walk(params.table, tile.seq, tile.end);
  KvTile k_tile{};
  if (!walk.First(k_tile)) return;
  LoadQueryTile<T, Policy::kHeadDim, Policy::kGroupThreads, typename Policy::QueryPlacement>(
      q_shared, params, tile, packed, kv_head, thread);
  load(k_ring.Tile(0), keys, k_tile);
  uint32_t pending = k_ring.Full(0);
  bool more = true;
  for (int use = 0; more; ++use) {
    const KvTile v_tile = k_tile;
    more = walk.Next(k_tile);
    if (more) {
      k_ring.WaitEmpty(use + 1);
      load(k_ring.Tile(use + 1), keys, k_tile);
      ptx::CpAsyncWait<1>();
      publish(pending);
      pending = k_ring.Full(use + 1);
    }
    v_ring.WaitEmpty(use);
    load(v_ring.Tile(use), values, v_tile);
    ptx::CpAsyncWait<1>();
    publish(pending);
    pending = v_ring.Full(use);
  }
  ptx::CpAsyncWait<0>();
  publish(pending);
}

// A consumer warpgroup's part: attention of its 64 rows.
template <typename Policy>
__device__ __forceinline__ void ConsumeTiles(const PagedPrefillParams& params,
                                             const QueryTile& tile, const PackedRows& packed,
                                             int32_t kv_head, unsigned char* shared,
                                             const HopperTileRing<Policy>& k_ring,
                                             const HopperTileRing<Policy>& v_ring) {
  constexpr int kTurnBarrier = 1;   // and 2: the consumers' turns
  constexpr int kQueryBarrier = 3;  // and 4: a consumer is done with its query rows
  constexpr int kTurnThreads = Policy::kConsumers * Policy::kGroupThreads;
  const int consumer = static_cast<int>(threadIdx.x) / Policy::kGroupThreads - 1;
  const int lane = threadIdx.x % 32;
  const int warp_row = (static_cast<int>(threadIdx.x) - Policy::kGroupThreads) / 32 * 16;
  const float scale_log2 = params.scale * 1.44269504088896340736f;
  const uint64_t q =
      WgmmaDescriptor(ptx::SharedAddress(shared) +
                          consumer * Policy::kConsumerRows * Policy::QueryPlacement::kRowPitch,
                      0);
  // Tokens of the context that a packed row of this tile sees.
  const auto visible_end = [&](int32_t row) {
    return params.causal ? tile.first_end + packed.Token(row) : tile.end;
  };
  const int32_t warp_first_end = visible_end(warp_row);

  HopperConsumerTile<Policy> consumer_tile;
  ContextWalk<Policy::kKvTokens> walk(params.table, tile.seq, tile.end);
  KvTile kv_tile{};
  const auto mask_and_softmax = [&] {
    const int32_t tokens = kv_tile.chunk_length - kv_tile.token;
    if (min(tokens, warp_first_end - kv_tile.position) < Policy::kKvTokens) {
      const int32_t visible[2] = {
          min(tokens, visible_end(warp_row + lane / 4) - kv_tile.position),
          min(tokens, visible_end(warp_row + lane / 4 + 8) - kv_tile.position)};
      consumer_tile.Mask(visible);
    }
    consumer_tile.Softmax(scale_log2);
  };

  if (walk.First(kv_tile)) {
    if (consumer == 1) ptx::NamedBarrierArrive(kTurnBarrier, kTurnThreads);
    k_ring.WaitFull(0);
    consumer_tile.IssueScores(q, k_ring.Tile(0));
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(consumer_tile.scores);
    k_ring.Release(0);
    mask_and_softmax();
    consumer_tile.Rescale();
    int use = 0;
    for (; walk.Next(kv_tile); ++use) {
      k_ring.WaitFull(use + 1);
      ptx::NamedBarrierSync(kTurnBarrier + consumer, kTurnThreads);
      consumer_tile.IssueScores(q, k_ring.Tile(use + 1));
      v_ring.WaitFull(use);
      consumer_tile.IssueValues(v_ring.Tile(use));
      ptx::NamedBarrierArrive(kTurnBarrier + 1 - consumer, kTurnThreads);
      ptx::WgmmaWait<1>();
      ptx::PinRegisters(consumer_tile.scores);
      k_ring.Release(use + 1);
      mask_and_softmax();
      consumer_tile.KeepSoftmaxHere();
      ptx::WgmmaWait<0>();
      ptx::PinRegisters(consumer_tile.out);
      v_ring.Release(use);
      consumer_tile.Rescale();
    }
    // Takes the turn that the other consumer passed on last.
    if (consumer == 0) ptx::NamedBarrierSync(kTurnBarrier, kTurnThreads);
    v_ring.WaitFull(use);
    consumer_tile.IssueValues(v_ring.Tile(use));
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(consumer_tile.out);
  }

  ptx::NamedBarrierSync(kQueryBarrier + consumer, Policy::kGroupThreads);
  const TileOutput<typename Policy::T, Policy::kHeadDim, typename Policy::QueryPlacement> output{
      params, tile, packed, kv_head, shared};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    output.Finish(warp_row + half * 8 + lane / 4, consumer_tile.rows[half], scale_log2, [&](int n) {
      return float2{consumer_tile.out[4 * n + 2 * half], consumer_tile.out[4 * n + 2 * half + 1]};
    });
  }
  __syncwarp();
  output.template Store<16>(warp_row);
}

template <typename Policy>
__global__ void __launch_bounds__(kHopperPrefillLaunchBound, 1)
    HopperPrefillKernel(const __grid_constant__ PagedPrefillParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(kHopperPrefillLaunchBound == Policy::kThreads);
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t q_shared = ptx::SharedAddress(shared);
  const uint32_t k_shared = q_shared + Policy::kQueryBytes;
  const uint32_t v_shared = k_shared + Policy::kStages * Policy::kKvBytes;
  const uint32_t barriers = v_shared + Policy::kStages * Policy::kKvBytes;
  const HopperTileRing<Policy> k_ring{k_shared, barriers};
  const HopperTileRing<Policy> v_ring{v_shared, barriers + 2 * Policy::kStages * 8};

  ptx::GridDependencyLaunch();
  if (threadIdx.x == 0) {
    k_ring.Init();
    v_ring.Init();
  }
  const int32_t kv_head = static_cast<int32_t>(blockIdx.x % params.layout.num_kv_heads);
  const QueryTile tile(params, static_cast<int32_t>(blockIdx.x / params.layout.num_kv_heads));
  const PackedRows packed(params.num_q_heads / params.layout.num_kv_heads);
  __syncthreads();
  ptx::GridDependencyWait();
  if (threadIdx.x < Policy::kGroupThreads) {
    ptx::ReleaseRegisters<Policy::kProducerRegisters>();
    ProduceTiles(params, tile, packed, kv_head, q_shared, k_ring, v_ring);
  } else {
    ptx::AcquireRegisters<Policy::kConsumerRegisters>();
    ConsumeTiles(params, tile, packed, kv_head, shared, k_ring, v_ring);
  }
#endif
}

}  // namespace tokline
