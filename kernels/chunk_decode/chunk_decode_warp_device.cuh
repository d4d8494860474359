// chunk_decode for many sequences, about as many as warps: each sequence has a warp to itself.
//
// Grid: one warp per lane and KV head; the lanes of a block are its warps. A lane's tasks are whole
//   sequences or parts of those that are much longer than the others. After run lanes, a task
//   covers everything that these have not read. No warp waits for another.
// Merge: a warp adds the states of run lanes to its own. A warp that reads a part of a sequence
//   leaves a state, and the last warp of the sequence to do so adds all states in order.
// Shared memory: the ring of a block, in which each warp owns 16 tokens of every stage, and one
//   place per warp for the query rows that come with a task's first tokens.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <bit>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/chunk_decode/merge_device.cuh"
#include "kernels/chunk_decode/rows_device.cuh"
#include "kernels/chunk_decode/tiles_device.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline::chunk_decode {

// What the end of a task needs to know.
struct OwnSequence {
  struct {
    int32_t seq, shift;
  } member;
  bool has_tokens;

  __device__ __forceinline__ explicit OwnSequence(const ChunkDecodeTask& task)
      : member{task.first_member.seq, task.first_member.shift},
        has_tokens(task.range_begin < task.range_end) {}
};

// Which partial states a sequence has.
struct PartialStates {
  int32_t begin = 0, end = 0;

  PartialStates() = default;
  __device__ __forceinline__ PartialStates(const Arguments& args, int32_t seq)
      : begin(__ldg(args.params.plan.seq_partial_indptr + seq)),
        end(__ldg(args.params.plan.seq_partial_indptr + seq + 1)) {}
};

// The task after the one whose tokens are being loaded, one word per lane: it is loaded long before
// it is needed, and takes one register.
class UpcomingTask {
 public:
  __device__ __forceinline__ void Load(const ChunkDecodeTask& task) {
    const int lane = threadIdx.x % 32;
    if (lane < kWords) word_ = __ldg(reinterpret_cast<const uint32_t*>(&task) + lane);
  }
  __device__ __forceinline__ ChunkDecodeTask Get() const {
    std::array<uint32_t, kWords> words;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = __shfl_sync(0xffffffffu, word_, i);
    return std::bit_cast<ChunkDecodeTask>(words);
  }

 private:
  static constexpr int kWords = sizeof(ChunkDecodeTask) / 4;
  uint32_t word_ = 0;
};

// Adds partial states to the state of one warp, in their order.
template <typename P>
__device__ __forceinline__ void AddPartialStates(const Arguments& args, const PartialStates& states,
                                                 int kv_head, int group, RowState<P>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    if (row >= group) break;
#pragma unroll 1
    for (int32_t pair = states.begin; pair < states.end; pair += 2) {
      // Two states are in flight together; if the last one has no partner, the other counts as
      // nothing.
      float2 values[2][P::kHeadDim / 8], max_sum[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t partial = min(pair + i, states.end - 1);
        const int64_t index =
            (int64_t{partial} * args.params.layout.num_kv_heads + kv_head) * group + row;
        max_sum[i] = __ldcg(args.max_sum + index);
        const float* const from = args.outputs + index * P::kHeadDim + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < P::kHeadDim / 8; ++n) {
          values[i][n] = __ldcg(reinterpret_cast<const float2*>(from + n * 8));
        }
      }
      if (pair + 1 == states.end) max_sum[1] = {-INFINITY, 0};
      const float best = fmaxf(state.row_max[half], fmaxf(max_sum[0].x, max_sum[1].x));
      const float own = Weight(state.row_max[half], best);
      const float weights[2] = {Weight(max_sum[0].x, best), Weight(max_sum[1].x, best)};
      state.row_max[half] = best;
      const float sum = weights[0] * max_sum[0].y + weights[1] * max_sum[1].y;
      state.row_sum[half] = state.row_sum[half] * own + (lane % 4 == 0 ? sum : 0.0f);
#pragma unroll
      for (int n = 0; n < P::kHeadDim / 8; ++n) {
        float* const output = &state.output[n][half * 2];
        output[0] = output[0] * own + weights[0] * values[0][n].x + weights[1] * values[1][n].x;
        output[1] = output[1] * own + weights[0] * values[0][n].y + weights[1] * values[1][n].y;
      }
    }
  }
}

// Leaves the state of a part of a sequence. Returns whether the states of all parts are there now.
template <typename P>
__device__ __forceinline__ bool LeaveState(const Arguments& args, const ChunkDecodeMember& member,
                                           int32_t parts, int kv_head, int group,
                                           const RowState<P>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 >= group) break;
    const float sum = WarpSum<4>(state.row_sum[half]);
    const int row = half * 8 + lane / 4;
    if (row >= group) continue;
    StoreQuadState<P::kHeadDim>(
        args, member.partial, kv_head, group, row, {state.row_max[half], sum}, [&](int n) {
          return float2{state.output[n][half * 2], state.output[n][half * 2 + 1]};
        });
  }
  __syncwarp();  // the first lane publishes what all lanes have stored
  bool last = false;
  if (lane == 0) {
    const int64_t place = int64_t{member.seq} * args.params.layout.num_kv_heads + kv_head;
    last = IsLast(args.counters + place * (1 + kChunkDecodeBundles) + 1, parts);
  }
  __syncwarp();  // and all lanes see what it has acquired
  return __shfl_sync(0xffffffffu, last, 0);
}

// Writes the output rows of a sequence from the state of one warp.
template <typename P>
__device__ __forceinline__ void WriteState(const Arguments& args, int32_t seq, int kv_head,
                                           int group, const RowState<P>& state) {
  using T = typename P::T;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 >= group) break;
    const float sum = WarpSum<4>(state.row_sum[half]);
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    const int row = half * 8 + lane / 4, q_head = kv_head * group + row;
    if (row >= group) continue;
    T* const out = static_cast<T*>(args.params.out) + seq * args.params.out_stride +
                   int64_t{q_head} * P::kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < P::kHeadDim / 8; ++n) {
      *reinterpret_cast<uint32_t*>(out + n * 8) =
          Pack2<T>(state.output[n][half * 2] * inverse, state.output[n][half * 2 + 1] * inverse);
    }
    if (args.params.lse_ln && lane % 4 == 0) {
      args.params.lse_ln[int64_t{seq} * args.params.num_q_heads + q_head] =
          LogSumExp(state.row_max[half], sum);
    }
  }
}

// kAdds: lanes take parts, or the kernel of run lanes has run before. Launches without either need
// not fetch that code.
template <typename P, bool kAdds>
__global__ void __maxnreg__(P::kRegisters) WarpKernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char shared[];
  const ChunkDecodePlanView& plan = args.params.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_kv_heads = args.params.layout.num_kv_heads;
  const int kv_head = blockIdx.x % num_kv_heads, group = args.params.num_q_heads / num_kv_heads;
  // The first lanes, which get tasks first, lie in different blocks.
  const int num_blocks = plan.grid.num_lanes / P::kWarps;
  const int lane_of_plan = warp * num_blocks + blockIdx.x / num_kv_heads;
  const uint32_t ring = ptx::SharedAddress(shared);
  const uint32_t query_rows = ring + P::kStages * P::kStageBytes + warp * P::kQueryBytes;

  ptx::GridDependencyLaunch();
  // The plan and the page lists are uploaded before the step's first kernel, so they may be read
  // before the wait.
  const ChunkDecodeLaneStart start = plan.lane_starts[lane_of_plan];
  const int32_t task_begin = start.task_begin, task_end = start.task_end;
  if (task_begin == task_end) return;
  const ChunkDecodeTask& first_task = start.task;
  int32_t next_task = task_begin;  // the task of the next tokens to load
  OwnSequence sequence(first_task), next_sequence = sequence, sequence_before = sequence;
  UpcomingTask upcoming;  // number next_task + 1
  if (task_begin + 1 < task_end) upcoming.Load(plan.tasks[task_begin + 1]);
  TileRing<P> tiles(ring + warp * 16 * P::kRowBytes);
  TokenCursor<16> next(first_task);
  PageLookup<P> page(args, lane_of_plan, next, 0);  // of the next tokens
  // Before the dependency wait no query is loaded, because the previous kernel writes the queries.
  bool next_brings_query = !args.params.only_last_is_new;
  const auto find_next = [&] {
    while (!next.Valid() && next_task + 1 < task_end) {
      const ChunkDecodeTask opened = upcoming.Get();
      if (++next_task + 1 < task_end) upcoming.Load(plan.tasks[next_task + 1]);
      sequence_before = next_sequence;
      next_sequence = OwnSequence(opened);
      next = TokenCursor<16>(opened);
      next_brings_query = true;
    }
    if (next.Valid()) page.Find(args, next, next.token);
  };
  find_next();
  LateRow<P> late;
  // Loads the next 16 tokens, if the tasks up to `last_task` have any.
  const auto load_next = [&](int32_t last_task, bool early) {
    if (!next.Valid() || next_task > last_task) return false;
    const bool leaves_last = early && next.IsLast();
    if (leaves_last) {
      late = LateRow<P>(args, next.token_end - 1, page.page, kv_head, tiles.ToLoad(),
                        next.Tokens() - 1);
    }
    LoadTokens<P>(args, next.token, next.token_end, page.page, kv_head, tiles.ToLoad(),
                  leaves_last);
    if (next_brings_query) {
      LoadQuery<P>(args, next_sequence.member.seq, kv_head, group, query_rows, lane, 32);
    }
    next_brings_query = false;
    ptx::CpAsyncCommit();
    tiles.Load(next.Tokens(), next.IsLast());
    next.Advance(plan.ranges);
    find_next();
    return true;
  };
  for (int32_t t = task_begin;;) {
    const bool first = t == task_begin, early = first && args.params.only_last_is_new;
    if (first && !early) ptx::GridDependencyWait();
    // The query of the previous task has been read, so the query of this one may be loaded.
    while (tiles.on_way < P::kStages && load_next(t, early)) {
    }
    const auto member_of = [&](int) { return sequence.member; };
    Query<P> query;
    if (early) {
      ptx::GridDependencyWait();
      late.Load(args);
      query.Load(args, group, group, 0, kv_head, member_of);
      query.Rotate(args, group, group, 0, member_of);
    }
    PartialStates partial;  // loaded long before they are needed
    if constexpr (kAdds) partial = PartialStates(args, sequence.member.seq);
    RowState<P> state;
    bool has_tokens = sequence.has_tokens;
    for (bool has_query = early; has_tokens; has_query = true) {
      tiles.AwaitMine();
      __syncwarp();
      if (!has_query) {
        query.LoadShared(query_rows, group);
        query.Rotate(args, group, group, 0, member_of);
        __syncwarp();  // all lanes have read it before the next one is loaded
      }
#pragma unroll 1
      while (tiles.on_way < P::kStages && load_next(t + 1, false)) {
      }
      has_tokens = !tiles.IsLast();
      state.Add(query, tiles.to_compute, tiles.Tokens(), args.scale_log2);
      tiles.Computed();
    }
    __syncwarp();  // all lanes have read the last tokens before others are loaded there
    bool complete = true;
    if (kAdds && partial.begin < partial.end) {
      if (plan.grid.takes_parts) {
        complete = LeaveState<P>(args, plan.tasks[t].first_member, partial.end - partial.begin,
                                 kv_head, group, state);
        state = {};
      }
      if (complete) AddPartialStates<P>(args, partial, kv_head, group, state);
    }
    if (complete) WriteState<P>(args, sequence.member.seq, kv_head, group, state);
    if (++t == task_end) return;
    sequence = t == next_task       ? next_sequence
               : t == next_task - 1 ? sequence_before
                                    : OwnSequence(plan.tasks[t]);  // among some without KV
  }
}

}  // namespace tokline::chunk_decode
