// Grid: one block of 4 warps per lane and KV head. It runs the lane's tasks in order, streams
//   64-token K and V tiles through a cp.async ring and keeps an online softmax per query row.
// Rows: the query rows of a task (members x heads of the group) fill MMA tiles of 16 rows. With at
//   most 16 rows the warps share the row tile, and each takes 16 tokens of every tile. With up to
//   64 rows each warp owns a row tile and takes all tokens.
// Loads: if the warps share the rows, a warp loads only the 16 tokens of a tile that it takes. They
//   lie on one page, and no other warp waits for them, so only a task's first tile needs a barrier.
// Shared memory: a ring [stage][K | V][64][head_dim], whose 16-byte pieces are XOR-swizzled by row.
//   At the end of a task the fp32 states of the warps lie in the stage that was read last, while
//   the other stages fill with the next task's tiles. If the states need more than one stage, they
//   take the whole ring, which is drained first.
// Merge: merge_device.cuh writes the output, and adds the states of tasks that share a sequence.
// Clusters: chunk_decode_cluster_device.cuh has the kernel for grids of clusters.
// Look-ahead: a block keeps its tasks in shared memory, and looks up the pages of the next tile
//   while a tile is computed.
// Dependent launch: the plan, the page lists and, with only_last_is_new, the first tiles except
//   their LateRow are read before the wait.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/chunk_decode/merge_device.cuh"
#include "kernels/chunk_decode/rows_device.cuh"
#include "kernels/chunk_decode/tiles_device.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline::chunk_decode {

// kBundled: sequences may have so many partial states that they are added in bundles. Launches
// without bundles need not fetch that code.
template <typename P, bool kBundled>
__global__ void __maxnreg__(P::kRegisters) Kernel(const __grid_constant__ Arguments args) {
  // The lane's first tasks, so that a task begins without a load.
  constexpr int kTasks = 40;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ OpenMember members[kChunkDecodeMaxRows];
  __shared__ ChunkDecodeTask tasks[kTasks];
  static_assert(sizeof(members) + sizeof(tasks) <= kChunkDecodeStaticSharedBytes);
  const ChunkDecodePlanView& plan = args.params.plan;
  const int warp = threadIdx.x / 32;
  const int num_kv_heads = args.params.layout.num_kv_heads;
  const int kv_head = blockIdx.x % num_kv_heads, lane_of_plan = blockIdx.x / num_kv_heads;
  const int group = args.params.num_q_heads / num_kv_heads;
  const uint32_t ring = ptx::SharedAddress(shared);

  ptx::GridDependencyLaunch();
  // The plan and the page lists are uploaded before the step's first kernel, so they may be read
  // before the wait.
  const ChunkDecodeLaneStart start = plan.lane_starts[lane_of_plan];
  const int32_t task_begin = start.task_begin, task_end = start.task_end;
  if (task_begin == task_end) return;
  constexpr int kUnits = sizeof(ChunkDecodeTask) / 16;
  static_assert(kTasks * kUnits <= P::kThreads);
  if (threadIdx.x < min(kTasks, task_end - task_begin) * kUnits) {
    const auto* const from = reinterpret_cast<const uint4*>(plan.tasks + task_begin);
    ptx::CpAsync16(ptx::SharedAddress(tasks) + threadIdx.x * 16, from + threadIdx.x, true);
  }
  ptx::CpAsyncCommit();
  bool has_tasks = false;  // a tile that was loaded after them has arrived for all threads
  const auto task_of = [&](int32_t t) {
    const int index = t - task_begin;
    return has_tasks && index < kTasks ? tasks[index] : plan.tasks[t];
  };
  // Tiles are loaded ahead of the one that is computed, and beyond the end of a task if its states
  // leave room for them. The query rows of a task with one member come with its first tile, because
  // a load at the start of the task would wait behind all tiles in flight. Two places suffice for
  // them: tiles are loaded at most one task ahead, and barriers lie between the end of a task and
  // the loads of the task after the next.
  TileRing<P> tiles(ring);
  ChunkDecodeTask task = start.task;  // that is computed
  int32_t next_task = task_begin;     // the task of the next tile to load
  TileCursor next(task);
  PageLookup<P> page(args, lane_of_plan, next, warp);  // of the next tile
  const auto comes_with_tile = [&](const ChunkDecodeTask& of) {
    return args.queries_with_tiles && of.member_count == 1;
  };
  // The sequence whose query comes with the next tile, or -1. It is -1 before the dependency wait,
  // because the previous kernel writes the queries.
  int32_t next_query =
      comes_with_tile(task) && !args.params.only_last_is_new ? task.first_member.seq : -1;
  // Finds the pages of the next tile, which may belong to a later task, before they are needed.
  const auto find_next = [&] {
    while (!next.Valid() && next_task + 1 < task_end) {
      const ChunkDecodeTask opened = task_of(++next_task);
      next = TileCursor(opened);
      next_query = comes_with_tile(opened) ? opened.first_member.seq : -1;
    }
    if (next.Valid()) page.Find(args, next, next.token + FirstTokenOfWarp());
  };
  find_next();
  const auto query_address = [&](int32_t t) {
    return ring + P::kStages * P::kStageBytes + t % 2 * P::kQueryBytes;
  };
  // Stores what the end of a task needs to know about its members.
  const auto open_members = [&] {
    if (threadIdx.x >= task.member_count) return;
    const ChunkDecodeMember member = Member(args, task, threadIdx.x);
    const int32_t* const indptr = plan.seq_partial_indptr + member.seq;
    const int32_t begin = threadIdx.x == 0 ? task.first_states_begin : indptr[0];
    const int32_t states = threadIdx.x == 0 ? task.first_states : indptr[1] - indptr[0];
    members[threadIdx.x] = {member.seq, member.partial, states, begin};
  };
  LateRow<P> late;
  // Loads the next tile, if the tasks up to `last_task` have one.
  const auto load_next = [&](int32_t last_task, bool early) {
    if (!next.Valid() || next_task > last_task) return false;
    const bool leaves_last = early && next.IsLast();
    if (leaves_last) late = LateRow<P>::OfTile(args, next, page.page, kv_head, tiles.ToLoad());
    LoadTile<P>(args, next, page.page, kv_head, tiles.ToLoad(), leaves_last);
    if (next_query >= 0) {
      LoadQuery<P>(args, next_query, kv_head, group, query_address(next_task), threadIdx.x,
                   P::kThreads);
      next_query = -1;
    }
    ptx::CpAsyncCommit();
    tiles.Load(next.Tokens(), next.IsLast());
    next.Advance(plan.ranges);
    find_next();
    return true;
  };
  for (int32_t t = task_begin; t < task_end;) {
    // The ring is empty here.
    const bool first = t == task_begin, early = first && args.params.only_last_is_new;
    if (first && !early) ptx::GridDependencyWait();
    // A third tile in flight is faster if blocks have one task, and slower if they have more.
    const int ahead = task_end - task_begin == 1 ? P::kStages : P::kStages - 1;
    while (tiles.on_way < ahead && load_next(t, early)) {
    }
    if (first) {
      if (early) ptx::GridDependencyWait();
      late.Load(args);
    }
    open_members();
    while (true) {
      const int num_rows = task.member_count * group;
      const bool warps_share_rows = num_rows <= 16;
      // Whether the states fit into the stage that is read last, so that the other stages may hold
      // later tiles.
      const bool fits_stage = num_rows <= P::kRowsInStage;
      const int32_t last_task = fits_stage ? t + 1 : t;
      const int row_tile = warps_share_rows ? 0 : warp;
      // Waits for the next tile: for this warp's part, or for the parts of all warps.
      const auto await_tile = [&](bool of_all) {
        tiles.AwaitMine();
        if (of_all) {
          __syncthreads();  // the tile is there for all, and the stage to refill is read by all
          has_tasks = true;
        } else {
          __syncwarp();
        }
      };
      bool has_tiles = task.range_begin < task.range_end;
      bool arrived = comes_with_tile(task) && !(t == task_begin && early) && has_tiles;
      const auto member_of = [&](int m) { return Member(args, task, m); };
      Query<P> query;
      if (arrived) {
        await_tile(true);
        query.LoadShared(query_address(t), group);
      } else {
        query.Load(args, num_rows, group, row_tile, kv_head, member_of);
      }
      query.Rotate(args, num_rows, group, row_tile, member_of);
      RowState<P> state;
      const bool idle = !warps_share_rows && warp * 16 >= num_rows;
      // All warps wait for the whole first tile, because it brings the query and the lane's tasks.
      for (bool of_all = true; has_tiles; of_all = !warps_share_rows, arrived = false) {
        if (!arrived) await_tile(of_all);
#pragma unroll 1
        while (tiles.on_way < P::kStages && load_next(last_task, false)) {
        }
        const int valid = tiles.Tokens();
        has_tiles = !tiles.IsLast();
        if (warps_share_rows) {
          if (warp * 16 < valid) {
            state.Add(query, tiles.to_compute + warp * 16 * P::kRowBytes, valid - warp * 16,
                      args.scale_log2);
          }
        } else if (!idle) {
          for (int row = 0; row < valid; row += 16) {
            state.Add(query, tiles.to_compute + row * P::kRowBytes, valid - row, args.scale_log2);
          }
        }
        tiles.Computed();
      }
      __syncthreads();  // the last tile is read
      const SharedStates<P> warps(fits_stage ? shared + (tiles.LastComputed() - ring) : shared,
                                  fits_stage ? num_rows : 16);
      state.Store(warps.outputs + warp * warps.warp_rows * P::kStateStride,
                  warps.max_sum + warp * warps.warp_rows, warps.warp_rows);
      __syncthreads();
      // Merges partial states once those of this task have been read.
      FinishTask<P, kBundled>(args, task, kv_head, group, members, warps, warps.outputs);
      __syncthreads();  // states and members are read before the next task overwrites them
      if (++t == task_end) return;
      task = task_of(t);
      if (tiles.on_way == 0) break;
      open_members();  // of the next task, whose first tile is on its way
    }
  }
}

}  // namespace tokline::chunk_decode
