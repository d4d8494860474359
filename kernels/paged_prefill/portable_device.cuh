// Paged prefill attention for sm_80 and newer, with cp.async and mma.sync.
// Grid: one block per tile of the plan. A block owns 128 packed query rows of one KV head and each
// warp 32 of them, with scores and output in registers. A tile that is a part of a context leaves
// the states of its rows in the workspace.
// Shared memory: the query tile, one K tile and one V tile of 64 tokens, all swizzled. The query
// tile's rows later stage their own output. Two blocks per SM hide each other's waits.
// Barriers: two per KV tile. After the first, K has arrived and V may be overwritten; after the
// second, V has arrived and K may be overwritten. So V loads during S = Q K^T and the softmax, and
// the next K during O += P V.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/softmax_row.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/paged_prefill/context_walk_device.cuh"
#include "kernels/paged_prefill/paged_prefill_plan.h"
#include "kernels/paged_prefill/part_states_device.cuh"
#include "kernels/paged_prefill/tile_output_device.cuh"

namespace tokline {

// kCut: tiles may be parts.
template <DType kDType, int kHeadDimOfPolicy, bool kCutOfPolicy>
struct PortablePrefillPolicy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimOfPolicy;
  static constexpr bool kCut = kCutOfPolicy;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = kPagedPrefillTileRows / kWarps;
  static constexpr int kKvTokens = 64;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kSharedBytes = (kPagedPrefillTileRows + 2 * kKvTokens) * kRowBytes;
  static_assert(kSharedBytes <= PagedPrefillBlockBytes(PagedPrefillVariant::kPortable, kHeadDim));
};

// A warp's 32 query rows as accumulator fragments of two 16-row tiles. In fragment [t][n][e], lane
// l holds row 16 t + l / 4 + 8 (e / 2) and column 8 n + 2 (l % 4) + e % 2.
template <typename Policy>
struct PortableWarpTile {
  using T = typename Policy::T;
  static constexpr int kTiles = Policy::kWarpRows / 16;
  static constexpr int kScoreColumns = Policy::kKvTokens / 8;
  static constexpr int kOutColumns = Policy::kHeadDim / 8;
  static constexpr int kRowBytes = Policy::kRowBytes;

  float out[kTiles][kOutColumns][4] = {};
  RowState rows[kTiles][2];
  uint32_t weights[kTiles][kScoreColumns][2];  // P in the storage type, rows l / 4 and l / 4 + 8

  // scores = Q K^T. `q` points to the warp's rows and `k` to the tile; both are the lane's ldmatrix
  // address for depth 0, from which SwizzledSegment derives the addresses of other depths.
  __device__ __forceinline__ void Scores(float (&scores)[kTiles][kScoreColumns][4], uint32_t q,
                                         uint32_t k) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kScoreColumns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[t][n][e] = 0;
      }
    }
#pragma unroll
    for (int depth = 0; depth < Policy::kHeadDim / 16; ++depth) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        ptx::LdMatrixX4(a[t], SwizzledSegment(q + t * 16 * kRowBytes, 2 * depth));
      }
#pragma unroll
      for (int n = 0; n < kScoreColumns; n += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4(b, SwizzledSegment(k + n * 8 * kRowBytes, 2 * depth));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          ptx::MmaM16N8K16<T>(scores[t][n], a[t], b[0], b[1]);
          ptx::MmaM16N8K16<T>(scores[t][n + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  // Sets the scores of tokens that a row does not see to -inf. `visible` holds the number of the
  // tile's tokens that each of the lane's rows sees.
  __device__ __forceinline__ static void Mask(float (&scores)[kTiles][kScoreColumns][4],
                                              const int32_t (&visible)[kTiles][2], int lane) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kScoreColumns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = n * 8 + lane % 4 * 2 + e % 2;
          if (column >= visible[t][e / 2]) scores[t][n][e] = -INFINITY;
        }
      }
    }
  }

  // Adds the tile to the online softmax: computes the weights, updates maxima and sums, and
  // rescales `out` to the new maxima.
  __device__ __forceinline__ void Softmax(const float (&scores)[kTiles][kScoreColumns][4],
                                          float scale_log2) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float correction[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        RowState& row = rows[t][half];
        float max = row.max;
#pragma unroll
        for (int n = 0; n < kScoreColumns; ++n) {
          max = fmaxf(max, fmaxf(scores[t][n][2 * half], scores[t][n][2 * half + 1]));
        }
        max = WarpMax<4>(max);
        const float offset = FiniteOffset<T>(max, scale_log2);
        correction[half] = ptx::Exp2(ExponentOffset<T>(row.max, scale_log2) - offset);
        row.max = max;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kScoreColumns; ++n) {
          const float low = ptx::Exp2(fmaf(scores[t][n][2 * half], scale_log2, -offset));
          const float high = ptx::Exp2(fmaf(scores[t][n][2 * half + 1], scale_log2, -offset));
          sum += low + high;
          weights[t][n][half] = Pack2<T>(low, high);
        }
        row.sum = fmaf(row.sum, correction[half], sum);
      }
      if (__any_sync(0xffffffffu, correction[0] != 1 || correction[1] != 1)) {
#pragma unroll
        for (int n = 0; n < kOutColumns; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out[t][n][e] *= correction[e / 2];
        }
      }
    }
  }

  // out += P V. `v` is the lane's ldmatrix address for column 0, from which SwizzledSegment derives
  // those of other columns.
  __device__ __forceinline__ void AddValues(uint32_t v) {
#pragma unroll
    for (int depth = 0; depth < kScoreColumns; depth += 2) {
#pragma unroll
      for (int n = 0; n < kOutColumns; n += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4Trans(b, SwizzledSegment(v + depth * 8 * kRowBytes, n));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint32_t a[4] = {weights[t][depth][0], weights[t][depth][1],
                                 weights[t][depth + 1][0], weights[t][depth + 1][1]};
          ptx::MmaM16N8K16<T>(out[t][n], a, b[0], b[1]);
          ptx::MmaM16N8K16<T>(out[t][n + 1], a, b[2], b[3]);
        }
      }
    }
  }
};

// Loads a tile's K rows (or V rows) of one head to `shared`, placed by Placement. kThreads threads
// cooperate, and the caller is `thread` among them. Rows beyond the chunk become zero, so that the
// contents of unused slots, including NaN, never reach the tensor cores.
template <typename T, int kHeadDim, int kTileTokens, int kThreads, typename Placement>
__device__ __forceinline__ void LoadKvTile(uint32_t shared, const T* __restrict__ pool,
                                           const PagedKvLayout& layout,
                                           const int32_t* __restrict__ chunk_pages,
                                           const KvTile& tile, int32_t head, int thread) {
  constexpr int kSegments = kHeadDim / 8;
  constexpr int kPassRows = kThreads / kSegments;
  constexpr int kPageUnit = 16;  // every page starts at a multiple of this
  static_assert(kPageUnit % kPassRows == 0 && kPassRows % 8 == 0);
  const int thread_row = thread / kSegments;
  const int segment = thread % kSegments;
  const PageSplit pages = layout.Pages();
  const uint32_t target = shared + Placement::Offset(thread_row, segment);
  const T* source = pool;
#pragma unroll
  for (int unit = 0; unit < kTileTokens; unit += kPageUnit) {
    const int32_t token = tile.token + unit;
    if (unit == 0 || pages.RowOf(token) == 0) {
      const int32_t page_index = pages.PageOf(min(token, tile.chunk_length - 1));
      const int64_t page = chunk_pages[tile.page_begin + page_index];
      source = pool + layout.KeyOffset(page, head, pages.RowOf(token) + thread_row) + segment * 8;
    } else {
      source += kPageUnit * layout.RowStride();
    }
#pragma unroll
    for (int row = 0; row < kPageUnit; row += kPassRows) {
      ptx::CpAsync16(target + (unit + row) * Placement::kRowPitch,
                     source + row * layout.RowStride(),
                     token + row + thread_row < tile.chunk_length);
    }
  }
}

// Loads the query rows of a tile to `shared`; rows that the tile does not have become zero.
template <typename T, int kHeadDim, int kThreads, typename Placement>
__device__ __forceinline__ void LoadQueryTile(uint32_t shared, const PagedPrefillParams& params,
                                              const QueryTile& tile, const PackedRows& packed,
                                              int32_t kv_head, int thread) {
  constexpr int kSegments = kHeadDim / 8;
  constexpr int kPassRows = kThreads / kSegments;
  const int segment = thread % kSegments;
  const T* q = static_cast<const T*>(params.q) + int64_t{kv_head} * packed.group * kHeadDim;
#pragma unroll
  for (int pass = 0; pass < kPagedPrefillTileRows / kPassRows; ++pass) {
    const int row = pass * kPassRows + thread / kSegments;
    const bool valid = row < tile.num_rows;
    const int32_t token = valid ? packed.Token(row) : 0;
    const int32_t head = valid ? packed.Head(row) : 0;
    ptx::CpAsync16(
        shared + Placement::Offset(row, segment),
        q + int64_t{tile.q_begin + token} * params.q_stride + head * kHeadDim + segment * 8, valid);
  }
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocksPerSm)
    PortablePrefillKernel(const __grid_constant__ PagedPrefillParams params) {
  using T = typename Policy::T;
  using WarpTile = PortableWarpTile<Policy>;
  using Placement = SwizzledRows<Policy::kRowBytes>;
  constexpr int kRowBytes = Policy::kRowBytes;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t q_shared = ptx::SharedAddress(shared);
  const uint32_t k_shared = q_shared + kPagedPrefillTileRows * kRowBytes;
  const uint32_t v_shared = k_shared + Policy::kKvTokens * kRowBytes;

  ptx::GridDependencyLaunch();
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp_row = thread / 32 * Policy::kWarpRows;
  const PagedPrefillTile planned = params.tiles[blockIdx.x];
  const int32_t kv_head = planned.kv_head;
  const QueryTile tile(params, planned);
  const PackedRows packed(params.num_q_heads / params.layout.num_kv_heads);
  auto walk = WalkOf<Policy::kKvTokens, Policy::kCut>(params, blockIdx.x, planned);
  KvTile kv_tile;
  bool more = walk.First(kv_tile);
  const T* keys = static_cast<const T*>(params.kv);
  const T* values = keys + params.layout.KvStride();
  const auto load = [&](uint32_t shared_tile, const T* pool) {
    LoadKvTile<T, Policy::kHeadDim, Policy::kKvTokens, Policy::kThreads, Placement>(
        shared_tile, pool, params.layout, params.table.chunk_pages, kv_tile, kv_head, thread);
  };
  // The number of context tokens that a packed row of this tile sees.
  const auto visible_end = [&](int32_t row) {
    return params.causal ? tile.first_end + packed.Token(row) : tile.end;
  };

  ptx::GridDependencyWait();
  LoadQueryTile<T, Policy::kHeadDim, Policy::kThreads, Placement>(q_shared, params, tile, packed,
                                                                  kv_head, thread);
  if (more) load(k_shared, keys);
  ptx::CpAsyncCommit();

  const uint32_t q_lane = q_shared + warp_row * kRowBytes + Placement::Offset(lane % 16, lane / 16);
  const uint32_t k_lane = k_shared + Placement::Offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t v_lane = v_shared + Placement::Offset(lane % 16, lane / 16);
  const float scale_log2 = params.scale * 1.44269504088896340736f;
  const int32_t warp_last_row = min(warp_row + Policy::kWarpRows, tile.num_rows) - 1;
  const int32_t warp_first_end = visible_end(warp_row);
  const int32_t warp_end = warp_last_row < warp_row ? 0 : visible_end(warp_last_row);

  const TileOutput<T, Policy::kHeadDim, Placement> output{params, tile, packed, kv_head, shared};

  WarpTile warp_tile;
  while (more) {
    ptx::CpAsyncWait<0>();
    __syncthreads();
    load(v_shared, values);
    ptx::CpAsyncCommit();
    const bool active = kv_tile.position < warp_end;
    if (active) {
      float scores[WarpTile::kTiles][WarpTile::kScoreColumns][4];
      warp_tile.Scores(scores, q_lane, k_lane);
      const int32_t tokens = kv_tile.chunk_length - kv_tile.token;
      if (min(tokens, warp_first_end - kv_tile.position) < Policy::kKvTokens) {
        int32_t visible[WarpTile::kTiles][2];
#pragma unroll
        for (int t = 0; t < WarpTile::kTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = warp_row + t * 16 + half * 8 + lane / 4;
            visible[t][half] = min(tokens, visible_end(row) - kv_tile.position);
          }
        }
        WarpTile::Mask(scores, visible, lane);
      }
      warp_tile.Softmax(scores, scale_log2);
    }
    more = walk.Next(kv_tile);
    ptx::CpAsyncWait<0>();
    __syncthreads();
    if (more) load(k_shared, keys);
    ptx::CpAsyncCommit();
    if (active) warp_tile.AddValues(v_lane);
  }
  // A tile without context has not waited for its query rows yet.
  ptx::CpAsyncWait<0>();
  __syncthreads();
  const int32_t state = Policy::kCut ? StateOf(params, blockIdx.x) : -1;
#pragma unroll
  for (int t = 0; t < WarpTile::kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + t * 16 + half * 8 + lane / 4;
      const RowState& row_state = warp_tile.rows[t][half];
      const auto values_of_row = [&](int n) {
        return float2{warp_tile.out[t][n][2 * half], warp_tile.out[t][n][2 * half + 1]};
      };
      if (Policy::kCut && state >= 0) {
        PartStates<Policy::kHeadDim>(params).Store(state, row, tile.num_rows, row_state,
                                                   values_of_row);
      } else {
        output.Finish(row, row_state, scale_log2, values_of_row);
      }
    }
  }
  if (Policy::kCut && state >= 0) return;
  __syncwarp();
  output.template Store<Policy::kWarpRows>(
      warp_row, [&](int row) { return RowOffset<Policy::kHeadDim>(params, packed, row); });
}

}  // namespace tokline
