// chunk_decode for few sequences: the blocks of a cluster share a sequence, or a part of one, and a
// KV head.
//
// Grid: as in chunk_decode_device.cuh, with the cluster_lanes lanes of a cluster side by side. The
//   last task of a lane is its share of the cluster's sequence. Steps are so short that every
//   instruction counts, so there is no code here for anything else.
// Shared memory: the same ring. Stage 0 holds neither of the last two tiles, and receives the
//   states of all blocks of the cluster; the states of this block's warps lie in the other stages.
// Merge: rank row % cluster_lanes owns a row. Every block, even one without tiles, sends its state
//   of the row to the owner by st.async, and the owner adds the states in the order of the ranks.
// Barriers: the cluster's barrier says that the blocks' mbarriers are initialised and that their
//   stages 0 are free. Blocks arrive at it long before they send. The mbarrier of a block
//   completes, once per launch, when all states of its rows are there.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/chunk_decode/merge_device.cuh"
#include "kernels/chunk_decode/rows_device.cuh"
#include "kernels/chunk_decode/tiles_device.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mbarrier.cuh"

namespace tokline::chunk_decode {

// A block's place in its cluster, and what the cluster works on.
struct ClusterPlace {
  int lanes, rank;
  int lane_of_plan, kv_head;
  int group;  // query heads of the KV head, which are the rows

  __device__ __forceinline__ explicit ClusterPlace(const ChunkDecodeParams& params)
      : lanes(params.plan.grid.cluster_lanes),
        rank(static_cast<int>(blockIdx.x) % lanes),
        group(params.num_q_heads / params.layout.num_kv_heads) {
    const int cluster = static_cast<int>(blockIdx.x) / lanes;
    kv_head = cluster % params.layout.num_kv_heads;
    lane_of_plan = cluster / params.layout.num_kv_heads * lanes + rank;
  }
  __device__ __forceinline__ int Owner(int row) const { return row % lanes; }
  __device__ __forceinline__ int OwnedRows() const { return (group + lanes - 1 - rank) / lanes; }
};

// The states that a block receives. For each of its rows, the states of all ranks, at most
// kMaxLanes, lie side by side.
template <typename P, int kMaxLanes>
struct ReceivedStates {
  // Rounded up to whole rows of all ranks.
  static constexpr int kMaxStates = 16 + kMaxLanes - 1;
  static constexpr int kBytes = P::kHeadDim * 4 + 8;  // of a state
  static_assert(kMaxStates * kBytes <= P::kStageBytes);

  float* outputs;    // [kMaxStates][kHeadDim]
  float2* max_sum;   // [kMaxStates]
  uint32_t arrived;  // the address of the mbarrier that counts their bytes

  __device__ __forceinline__ ReceivedStates(unsigned char* memory, uint32_t barrier)
      : outputs(reinterpret_cast<float*>(memory)),
        max_sum(reinterpret_cast<float2*>(outputs + kMaxStates * P::kHeadDim)),
        arrived(barrier) {}

  // One thread calls this, before the cluster's barrier.
  __device__ __forceinline__ void Expect(const ClusterPlace& place) const {
    ptx::MbarrierInit(arrived, 1);
    ptx::FenceMbarrierInit();
    ptx::MbarrierArriveExpect(arrived, place.OwnedRows() * place.lanes * kBytes);
  }

  // Sends a row's state to its owner. One warp calls this, after the cluster's barrier.
  __device__ __forceinline__ void Send(const ClusterPlace& place, int row,
                                       const RowSlice<P>& slice) const {
    constexpr int kWidth = RowSlice<P>::kWidth;
    const int lane = threadIdx.x % 32;
    const int at = row / place.lanes * place.lanes + place.rank;
    const int owner = place.Owner(row);
    const auto remote = [owner](const void* mine) {
      return ptx::ClusterAddress(ptx::SharedAddress(mine), owner);
    };
    const uint32_t barrier = ptx::ClusterAddress(arrived, owner);
    const uint32_t to = remote(outputs + at * P::kHeadDim + lane * kWidth);
    if constexpr (kWidth == 4) {
      ptx::ClusterStoreAsync(
          to, float4{slice.values[0], slice.values[1], slice.values[2], slice.values[3]}, barrier);
    } else {
      ptx::ClusterStoreAsync(to, float2{slice.values[0], slice.values[1]}, barrier);
    }
    if (lane == 0) {
      ptx::ClusterStoreAsync(remote(max_sum + at), float2{slice.row_max, slice.row_sum}, barrier);
    }
  }

  // Adds the states of a row that the block owns, in the order of the ranks.
  __device__ __forceinline__ RowSlice<P> Add(const ClusterPlace& place, int row) const {
    const int lane = threadIdx.x % 32;
    const int first = row / place.lanes * place.lanes;
    float2 states[kMaxLanes];
    RowSlice<P> slice;
#pragma unroll
    for (int rank = 0; rank < kMaxLanes; ++rank) {
      states[rank] = rank < place.lanes ? max_sum[first + rank] : float2{-INFINITY, 0};
      slice.row_max = fmaxf(slice.row_max, states[rank].x);
    }
#pragma unroll
    for (int rank = 0; rank < kMaxLanes; ++rank) {
      if (rank >= place.lanes) break;
      const float weight = Weight(states[rank].x, slice.row_max);
      slice.AddScaledVector(outputs + (first + rank) * P::kHeadDim + lane * RowSlice<P>::kWidth,
                            weight);
      slice.row_sum += weight * states[rank].y;
    }
    return slice;
  }
};

// How many tiles a task has.
__device__ __forceinline__ int CountTiles(const ChunkDecodeTask& task,
                                          const ChunkDecodeRange* ranges) {
  const auto tiles_of = [](const ChunkDecodeRange& range) {
    return (range.token_end - range.token_begin + kChunkDecodeTileTokens - 1) /
           kChunkDecodeTileTokens;
  };
  if (task.range_begin == task.range_end) return 0;
  int tiles = tiles_of(task.first_range);
  for (int32_t r = task.range_begin + 1; r < task.range_end; ++r) tiles += tiles_of(ranges[r]);
  return tiles;
}

// Leaves the states of the rows that the block owns of its cluster's part of a sequence. The last
// block of this rank to do so adds the states of all parts, in their order, and writes the rows.
template <typename P, int kMaxLanes>
__device__ __forceinline__ void FinishPart(const Arguments& args, const ClusterPlace& place,
                                           const ChunkDecodeTask& task,
                                           const ReceivedStates<P, kMaxLanes>& received) {
  static_assert(kMaxLanes <= kChunkDecodeBundles);  // a counter each
  __shared__ bool last;
  const ChunkDecodeMember& member = task.first_member;
  const int first_row = place.rank + static_cast<int>(threadIdx.x) / 32 * place.lanes;
  const int step = P::kWarps * place.lanes;
  for (int row = first_row; row < place.group; row += step) {
    StoreState<P>(args, member.partial, place.kv_head, place.group, row, received.Add(place, row));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int64_t of_head = int64_t{member.seq} * args.params.layout.num_kv_heads + place.kv_head;
    last = IsLast(args.counters + of_head * (1 + kChunkDecodeBundles) + 1 + place.rank,
                  task.first_states);
  }
  __syncthreads();
  if (!last) return;
  const StateRange parts{task.first_states_begin, task.first_states, task.first_states};
  for (int row = first_row; row < place.group; row += step) {
    RowSlice<P> sums[1];
    SumStates<P>(args, parts, 0, 1, place.kv_head, place.group, row, sums);
    WriteRow<P>(args, member.seq, place.kv_head * place.group + row, sums[0]);
  }
}

// Computes the block's share of the cluster's sequence, and writes the rows that the block owns.
template <typename P, bool kLarge>
__device__ __forceinline__ void DecodeShare(const Arguments& args, const ClusterPlace& place,
                                            const ChunkDecodeLaneStart& start,
                                            unsigned char* shared) {
  __shared__ uint64_t arrived;
  const ChunkDecodePlanView& plan = args.params.plan;
  const int warp = threadIdx.x / 32;
  const ChunkDecodeTask& task = start.task;
  const ReceivedStates<P, kLarge ? kChunkDecodeMaxClusterLanes : kChunkDecodeClusterLanes> received(
      shared, ptx::SharedAddress(&arrived));
  TileCursor tile(task), next = tile;
  PageLookup<P> page(args, place.lane_of_plan, next, warp);  // of the next tile
  if (threadIdx.x == 0) received.Expect(place);
  __syncwarp();
  // Tiles are numbered so that the last one lies in the last stage.
  const int tiles = CountTiles(task, plan.ranges);
  const int end = (tiles + P::kStages - 1) / P::kStages * P::kStages, begin = end - tiles;
  static_assert(P::kStages == 3);  // two tiles leave stage 0 free
  if (tiles <= 2) ptx::ClusterArrive();

  const uint32_t ring = ptx::SharedAddress(shared);
  const auto stage_address = [&](int t) { return ring + t % P::kStages * P::kStageBytes; };
  LateRow<P> late;
  const auto load = [&](int t, bool early) {
    const bool leaves_last = early && next.IsLast();
    if (leaves_last)
      late = LateRow<P>::OfTile(args, next, page.page, place.kv_head, stage_address(t));
    LoadTile<P>(args, next, page.page, place.kv_head, stage_address(t), leaves_last);
    ptx::CpAsyncCommit();
    next.Advance(plan.ranges);
    if (next.Valid()) page.Find(args, next, next.token + warp * 16);
  };
  Query<P> query;
  const bool early = args.params.only_last_is_new;
  const int first_end = min(begin + 2, end), wait_at = early ? first_end : begin;
#pragma unroll 1
  for (int t = begin;; ++t) {
    if (t == wait_at) {
      ptx::GridDependencyWait();
      late.Load(args);
      const auto member_of = [&](int) { return task.first_member; };
      query.Load(args, place.group, place.group, 0, place.kv_head, member_of);
      query.Rotate(args, place.group, place.group, 0, member_of);
    }
    if (t == first_end) break;
    load(t, early);
  }
  RowState<P> state;
#pragma unroll 1
  for (int t = begin; t < end; ++t) {
    if (t + 1 < end) {
      ptx::CpAsyncWait<1>();
    } else {
      ptx::CpAsyncWait<0>();
    }
    __syncwarp();  // the warp's tokens of the tile have arrived, and those of the previous tile
                   // have been read
    if (tiles > 2 && t == end - 2) ptx::ClusterArrive();
    if (t + 2 < end) load(t + 2, false);
    const int valid = tile.Tokens() - warp * 16;
    tile.Advance(plan.ranges);
    if (valid > 0) {
      state.Add(query, stage_address(t) + warp * 16 * P::kRowBytes, valid, args.scale_log2);
    }
  }
  __syncthreads();  // the last tile is read

  const SharedStates<P> warps(shared + P::kStageBytes, place.group);
  state.Store(warps.outputs + warp * warps.warp_rows * P::kStateStride,
              warps.max_sum + warp * warps.warp_rows, warps.warp_rows);
  __syncthreads();
  // Everything that a peer did before it arrived, including its reads of stage 0, is complete
  // before this block sends. The bytes of a send complete on the mbarrier with release at cluster
  // scope, so whoever waits for the mbarrier with acquire sees them. An owner waits, so no block
  // ends while others send to it, and stage 0 is filled only once, so no state is overwritten.
  ptx::ClusterWait();
  for (int row = warp; row < place.group; row += P::kWarps) {
    received.Send(place, row, AddWarps<P>(warps, row, true));
  }
  ptx::MbarrierWaitCluster(received.arrived, 0);
  if (kLarge && task.first_member.partial >= 0) {
    FinishPart(args, place, task, received);
    return;
  }
  for (int row = place.rank + warp * place.lanes; row < place.group;
       row += P::kWarps * place.lanes) {
    WriteRow<P>(args, task.first_member.seq, place.kv_head * place.group + row,
                received.Add(place, row));
  }
}

// kLarge: clusters may have more than eight blocks, or parts of sequences.
template <typename P, bool kLarge>
__global__ void __launch_bounds__(P::kThreads, 2)
    ClusterKernel(const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  const ChunkDecodePlanView& plan = args.params.plan;
  const ClusterPlace place(args.params);
  ptx::GridDependencyLaunch();
  // The plan and the page lists are uploaded before the step's first kernel, so they may be read
  // before the wait.
  const ChunkDecodeLaneStart start = plan.lane_starts[place.lane_of_plan];
  const bool clustered = start.task.clustered;
  if (clustered) {
    DecodeShare<P, kLarge>(args, place, start, shared);
  } else {
    ptx::GridDependencyWait();
  }
  // The other tasks belong to sequences without KV.
  for (int32_t t = start.task_begin; t < start.task_end - clustered; ++t) {
    const int32_t seq = plan.tasks[t].first_member.seq;
    for (int row = threadIdx.x / 32; row < place.group; row += P::kWarps) {
      WriteRow<P>(args, seq, place.kv_head * place.group + row, RowSlice<P>{});
    }
  }
#endif
}

}  // namespace tokline::chunk_decode
