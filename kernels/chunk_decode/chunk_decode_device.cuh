// Grid: one block of 4 warps per lane and KV head. It runs the lane's tasks in order, streams
//   64-token K and V tiles through a cp.async ring and keeps an online softmax per query row.
// Rows: the query rows of a task (members x heads of the group) fill MMA tiles of 16 rows. With at
//   most 16 rows the warps share the row tile, and each takes 16 tokens of every tile. With up to
//   64 rows each warp owns a row tile and takes all tokens.
// Shared memory: a ring [stage][K | V][64][head_dim], whose 16-byte pieces are XOR-swizzled by row.
//   At the end of a task the fp32 states of the warps lie in the stage that was read last, while
//   the other stages fill with the next task's tiles. If the states need more than one stage, they
//   take the whole ring, which is drained first.
// Merge: merge_device.cuh writes the output, and adds the states of tasks that share a sequence.
// Clusters: chunk_decode_cluster_device.cuh has the kernel for grids of clusters.
// Next: a block keeps its tasks, and looks up the pages of the next tile while a tile is computed.
// Dependent launch: the plan, the page lists and, with only_last_is_new, the first tiles except
//   their LateRow are read before the wait.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/chunk_decode/merge_device.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/ptx/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/swizzle.cuh"

namespace tokline::chunk_decode {

// A member of a task by its number.
__device__ __forceinline__ ChunkDecodeMember Member(const Arguments& args,
                                                    const ChunkDecodeTask& task, int m) {
  return m == 0 ? task.first_member : args.params.plan.members[task.member_begin + m];
}

// Walks the tiles of a task.
struct TileCursor {
  int32_t range = 0;
  int32_t range_end = 0;
  int32_t page_begin = 0;
  int32_t token = 0;
  int32_t token_end = 0;

  TileCursor() = default;
  __device__ explicit TileCursor(const ChunkDecodeTask& task)
      : range(task.range_begin),
        range_end(task.range_end),
        page_begin(task.first_range.page_begin),
        token(task.first_range.token_begin),
        token_end(task.first_range.token_end) {}
  __device__ bool Valid() const { return range < range_end; }
  // Whether the tile is the task's last.
  __device__ bool IsLast() const {
    return range + 1 == range_end && token + kChunkDecodeTileTokens >= token_end;
  }
  // How many tokens the tile has.
  __device__ int32_t Tokens() const { return min(kChunkDecodeTileTokens, token_end - token); }
  __device__ void Advance(const ChunkDecodeRange* ranges) {
    token += kChunkDecodeTileTokens;
    if (token < token_end || ++range == range_end) return;
    const ChunkDecodeRange opened = ranges[range];
    page_begin = opened.page_begin;
    token = opened.token_begin;
    token_end = opened.token_end;
  }
};

// The pages of a tile. Ranges begin at multiples of 16, so 16 tokens lie on one page.
struct TilePages {
  int32_t ids[kChunkDecodeTileTokens / 16] = {};

  TilePages() = default;
  __device__ __forceinline__ TilePages(const Arguments& args, const TileCursor& cursor) {
    const int32_t* pages = args.params.table.chunk_pages + cursor.page_begin;
#pragma unroll
    for (int i = 0; i < kChunkDecodeTileTokens / 16; ++i) {
      const int32_t token = cursor.token + i * 16;
      ids[i] =
          token < cursor.token_end ? __ldg(pages + args.params.layout.Pages().PageOf(token)) : 0;
    }
  }
};

// Issues the copies of one K and V tile. Rows past the range's end become zeros, so that the
// contents of dead slots (which may be NaN) never reach the MMA. `late` is the token that is left
// to a LateRow, or -1.
template <typename P>
__device__ __forceinline__ void LoadTile(const Arguments& args, const TileCursor& cursor,
                                         const TilePages& pages, int kv_head,
                                         uint32_t stage_address, int32_t late) {
  const PagedKvLayout& layout = args.params.layout;
  constexpr int kRowsAtOnce = P::kThreads / P::kPieces;
  const int first_row = threadIdx.x / P::kPieces, piece = threadIdx.x % P::kPieces;
  const int64_t value_offset = layout.KvStride() * 2;
  const int64_t step = layout.RowStride() * kRowsAtOnce * 2;
  const char* key = nullptr;
#pragma unroll
  for (int i = 0; i < P::kTile / kRowsAtOnce; ++i) {
    const int row = i * kRowsAtOnce + first_row;
    const int32_t token = cursor.token + row;
    const bool valid = token < cursor.token_end;
    if (i * kRowsAtOnce % 16 == 0) {
      key = static_cast<const char*>(args.params.kv) +
            2 * (layout.KeyOffset(pages.ids[i * kRowsAtOnce / 16], kv_head,
                                  layout.Pages().RowOf(token)) +
                 piece * 8);
    } else {
      key += step;
    }
    if (token == late) continue;
    const char* from = valid ? key : static_cast<const char*>(args.params.kv);
    const uint32_t to = stage_address + SwizzledOffset<P::kRowBytes>(row, piece);
    ptx::CpAsync16(to, from, valid);
    ptx::CpAsync16(to + P::kTileBytes, from + value_offset, valid);
  }
}

// The last row of a task, whose K and V the kernel before may still write while the rest of the
// tile is loaded.
template <typename P>
struct LateRow {
  const char* key = nullptr;
  uint32_t to = 0;

  LateRow() = default;
  __device__ __forceinline__ LateRow(const Arguments& args, const TileCursor& cursor, int kv_head,
                                     uint32_t stage_address) {
    if (threadIdx.x >= P::kPieces) return;
    const PagedKvLayout& layout = args.params.layout;
    const int32_t token = cursor.token_end - 1;
    const int32_t page =
        __ldg(args.params.table.chunk_pages + cursor.page_begin + layout.Pages().PageOf(token));
    key = static_cast<const char*>(args.params.kv) +
          2 * (layout.KeyOffset(page, kv_head, layout.Pages().RowOf(token)) + threadIdx.x * 8);
    to = stage_address + SwizzledOffset<P::kRowBytes>(cursor.Tokens() - 1, threadIdx.x);
  }

  // Issues the copies, in a group of their own.
  __device__ __forceinline__ void Load(const Arguments& args) const {
    if (key == nullptr) return;
    ptx::CpAsync16(to, key, true);
    ptx::CpAsync16(to + P::kTileBytes, key + args.params.layout.KvStride() * 2, true);
    ptx::CpAsyncCommit();
  }
};

// Issues the copies of the query rows of a sequence.
template <typename P>
__device__ __forceinline__ void LoadQuery(const Arguments& args, int32_t seq, int kv_head,
                                          int group, uint32_t rows_address) {
  const char* const from =
      static_cast<const char*>(args.params.q) +
      2 * (seq * args.params.q_stride + int64_t{kv_head} * group * P::kHeadDim);
  for (int i = threadIdx.x; i < group * P::kPieces; i += P::kThreads) {
    ptx::CpAsync16(rows_address + SwizzledOffset<P::kRowBytes>(i / P::kPieces, i % P::kPieces),
                   from + i * 16, true);
  }
}

// The A fragments of 16 query rows of a task. Rows past the task's repeat its last row, so that no
// lane waits for the loads of others; what they make is not stored.
template <typename P>
struct Query {
  uint32_t words[P::kSteps][4];

  static __device__ __forceinline__ int Row(const ChunkDecodeTask& task, int group, int row_tile,
                                            int half) {
    const int row = row_tile * 16 + half * 8 + static_cast<int>(threadIdx.x % 32 / 4);
    return min(row, task.member_count * group - 1);
  }

  __device__ __forceinline__ void Load(const Arguments& args, const ChunkDecodeTask& task,
                                       int group, int row_tile, int kv_head) {
    using T = typename P::T;
    const bool one_half = task.member_count * group <= 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && one_half) {
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          words[s][1] = words[s][0];
          words[s][3] = words[s][2];
        }
        break;
      }
      const int row = Row(task, group, row_tile, half);
      const int32_t seq = Member(args, task, row / group).seq;
      const T* q = static_cast<const T*>(args.params.q) + seq * args.params.q_stride +
                   int64_t{kv_head * group + row % group} * P::kHeadDim + threadIdx.x % 4 * 2;
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        words[s][half] = *reinterpret_cast<const uint32_t*>(q + s * 16);
        words[s][half + 2] = *reinterpret_cast<const uint32_t*>(q + s * 16 + 8);
      }
    }
  }

  // The same of a task with one member, whose rows lie in shared memory.
  __device__ __forceinline__ void LoadShared(uint32_t rows_address, int group) {
    const int lane = threadIdx.x % 32;
    const int row = min(lane % 16, group - 1);
#pragma unroll
    for (int s = 0; s < P::kSteps; ++s) {
      ptx::LdMatrixX4(words[s],
                      rows_address + SwizzledOffset<P::kRowBytes>(row, s * 2 + lane / 16));
    }
  }

  // Rotates each row by minus its member's shift.
  __device__ __forceinline__ void Rotate(const Arguments& args, const ChunkDecodeTask& task,
                                         int group, int row_tile) {
    using T = typename P::T;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t shift = Member(args, task, Row(task, group, row_tile, half) / group).shift;
      if (shift == 0) continue;
      // Fragment (step, half of the step) holds dims s * 16 + h * 8 + 2t and the next one. The same
      // thread holds their RoPE partners, which are head_dim / 2 further.
      const float2* angles = reinterpret_cast<const float2*>(args.params.rope_cos_sin) +
                             int64_t{abs(shift)} * (P::kHeadDim / 2) + threadIdx.x % 4 * 2;
      const float sign = shift > 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int s = 0; s < P::kSteps / 2; ++s) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t& low = words[s][half + 2 * h];
          uint32_t& high = words[s + P::kSteps / 2][half + 2 * h];
          const float2 a = Unpack2<T>(low), b = Unpack2<T>(high);
          const float2 first = angles[s * 16 + h * 8], second = angles[s * 16 + h * 8 + 1];
          low = Pack2<T>(a.x * first.x - b.x * sign * first.y,
                         a.y * second.x - b.y * sign * second.y);
          high = Pack2<T>(b.x * first.x + a.x * sign * first.y,
                          b.y * second.x + a.y * sign * second.y);
        }
      }
    }
  }
};

// Online softmax of one warp over 16 rows: row lane/4 in [0], row lane/4 + 8 in [1].
template <typename P>
struct RowState {
  float row_max[2] = {-INFINITY, -INFINITY};  // base 2, of the scaled scores
  float row_sum[2] = {0, 0};                  // this lane's columns only
  float output[P::kHeadDim / 8][4] = {};

  // Adds 16 tokens of a tile, of which the first `valid` (>= 1) count.
  __device__ __forceinline__ void Add(const Query<P>& query, uint32_t stage_address, int first_row,
                                      int valid, float scale_log2) {
    using T = typename P::T;
    const int lane = threadIdx.x % 32;
    float scores[2][4] = {};
    {
      float odd_scores[2][4] = {};  // of odd steps, which gives four independent chains of MMAs
      const int row = first_row + (lane / 16) * 8 + lane % 8;
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        uint32_t keys[4];
        ptx::LdMatrixX4(keys,
                        stage_address + SwizzledOffset<P::kRowBytes>(row, s * 2 + (lane / 8) % 2));
        ptx::MmaM16N8K16<T>(s % 2 ? odd_scores[0] : scores[0], query.words[s], keys[0], keys[1]);
        ptx::MmaM16N8K16<T>(s % 2 ? odd_scores[1] : scores[1], query.words[s], keys[2], keys[3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[n][c] += odd_scores[n][c];
      }
    }
    uint32_t probabilities[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = row_max[half];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[n][half * 2 + c];
          const int column = n * 8 + (lane % 4) * 2 + c;
          score = column < valid ? score * scale_log2 : -INFINITY;
          best = fmaxf(best, score);
        }
      }
      best = WarpMax<4>(best);
      // A row whose scores are all -inf (possible with infinite inputs) must not give NaN.
      const float base = best == -INFINITY ? 0.0f : best;
      const float rescale = ptx::Exp2(row_max[half] - base);
      row_max[half] = best;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float p0 = ptx::Exp2(scores[n][half * 2] - base);
        const float p1 = ptx::Exp2(scores[n][half * 2 + 1] - base);
        sum += p0 + p1;
        probabilities[n * 2 + half] = Pack2<T>(p0, p1);
      }
      row_sum[half] = row_sum[half] * rescale + sum;
#pragma unroll
      for (int n = 0; n < P::kHeadDim / 8; ++n) {
        output[n][half * 2] *= rescale;
        output[n][half * 2 + 1] *= rescale;
      }
    }
    const int row = first_row + ((lane / 8) % 2) * 8 + lane % 8;
    const uint32_t tile_address = stage_address + P::kTileBytes;
#pragma unroll
    for (int n = 0; n < P::kHeadDim / 16; ++n) {
      uint32_t values[4];
      ptx::LdMatrixX4Trans(values,
                           tile_address + SwizzledOffset<P::kRowBytes>(row, n * 2 + lane / 16));
      ptx::MmaM16N8K16<T>(output[n * 2], probabilities, values[0], values[1]);
      ptx::MmaM16N8K16<T>(output[n * 2 + 1], probabilities, values[2], values[3]);
    }
  }

  // Writes the first `rows` rows to shared memory: outputs [rows][kStateStride], (max, sum) [rows].
  __device__ __forceinline__ void Store(float* outputs, float2* max_sum, int rows) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      const float sum = WarpSum<4>(row_sum[half]);
      if (row >= rows) continue;
      if (lane % 4 == 0) max_sum[row] = {row_max[half], sum};
#pragma unroll
      for (int n = 0; n < P::kHeadDim / 8; ++n) {
        *reinterpret_cast<float2*>(outputs + row * P::kStateStride + n * 8 + (lane % 4) * 2) = {
            output[n][half * 2], output[n][half * 2 + 1]};
      }
    }
  }
};

// kBundled: sequences may have so many partial states that they are added in bundles. Other
// launches need not fetch that code.
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
  const int32_t task_begin = plan.lane_task_indptr[lane_of_plan];
  const int32_t task_end = plan.lane_task_indptr[lane_of_plan + 1];
  if (task_begin == task_end) return;
  constexpr int kUnits = sizeof(ChunkDecodeTask) / 16;
  static_assert(kTasks * kUnits <= P::kThreads);
  if (threadIdx.x < min(kTasks, task_end - task_begin) * kUnits) {
    const auto* const from = reinterpret_cast<const uint4*>(plan.tasks + task_begin);
    ptx::CpAsync16(ptx::SharedAddress(tasks) + threadIdx.x * 16, from + threadIdx.x, true);
  }
  ptx::CpAsyncCommit();
  bool has_tasks = false;  // a tile, which was loaded after them, is there for all
  const auto task_of = [&](int32_t t) {
    const int index = t - task_begin;
    return has_tasks && index < kTasks ? tasks[index] : plan.tasks[t];
  };
  // Tile number n of the lane lies in stage n % kStages. Tiles are loaded ahead of the one that is
  // computed, and beyond the end of a task if its states leave room for them. The query rows of a
  // task with one member come with its first tile: a load at its begin would wait behind all tiles
  // that are on their way. Two places suffice for them, since no tile is loaded of a task beyond
  // the next one, and barriers lie between the end of a task and the loads of the next but one.
  int loaded = 0, computed = 0;
  ChunkDecodeTask task = plan.tasks[task_begin];  // that is computed
  int32_t next_task = task_begin;                 // that the next tile to load belongs to
  TileCursor next(task);
  TilePages pages;  // of the next tile
  const auto comes_with_tile = [&](const ChunkDecodeTask& of) {
    return args.queries_with_tiles && of.member_count == 1;
  };
  // The sequence whose query comes with the next tile, or -1. Before the dependency wait there is
  // none, because the kernel before writes the queries.
  int32_t next_query =
      comes_with_tile(task) && !args.params.only_last_is_new ? task.first_member.seq : -1;
  // Finds the pages of the next tile, which may be a later task's, before they are needed.
  const auto find_next = [&] {
    while (!next.Valid() && next_task + 1 < task_end) {
      const ChunkDecodeTask opened = task_of(++next_task);
      next = TileCursor(opened);
      next_query = comes_with_tile(opened) ? opened.first_member.seq : -1;
    }
    if (next.Valid()) pages = TilePages(args, next);
  };
  find_next();
  const auto stage_address = [&](int tile) { return ring + tile % P::kStages * P::kStageBytes; };
  const auto query_address = [&](int32_t t) {
    return ring + P::kStages * P::kStageBytes + t % 2 * P::kQueryBytes;
  };
  // Stores what the end of a task needs to know about its members.
  const auto open_members = [&] {
    if (threadIdx.x >= task.member_count) return;
    const ChunkDecodeMember member = Member(args, task, threadIdx.x);
    const int32_t* const indptr = plan.seq_partial_indptr + member.seq;
    const int32_t states = threadIdx.x == 0 ? task.first_states : indptr[1] - indptr[0];
    members[threadIdx.x] = {member.seq, member.partial, static_cast<uint32_t>(states)};
  };
  LateRow<P> late;
  // Loads the next tile, if the tasks up to `last_task` have one.
  const auto load_next = [&](int32_t last_task, bool early) {
    if (!next.Valid() || next_task > last_task) return false;
    const bool leaves_last = early && next.IsLast();
    if (leaves_last) late = LateRow<P>(args, next, kv_head, stage_address(loaded));
    LoadTile<P>(args, next, pages, kv_head, stage_address(loaded),
                leaves_last ? next.token_end - 1 : -1);
    if (next_query >= 0) {
      LoadQuery<P>(args, next_query, kv_head, group, query_address(next_task));
      next_query = -1;
    }
    ptx::CpAsyncCommit();
    next.Advance(plan.ranges);
    find_next();
    ++loaded;
    return true;
  };
  for (int32_t t = task_begin; t < task_end;) {
    // The ring is empty here.
    const bool first = t == task_begin, early = first && args.params.only_last_is_new;
    if (first && !early) ptx::GridDependencyWait();
    // A third tile on its way gains where blocks have one task, and loses where they have more.
    const int ahead = task_end - task_begin == 1 ? P::kStages : P::kStages - 1;
    while (loaded < computed + ahead && load_next(t, early)) {
    }
    if (first) {
      if (early) ptx::GridDependencyWait();
      late.Load(args);
    }
    open_members();
    while (true) {
      const int num_rows = task.member_count * group;
      const bool warps_share_rows = num_rows <= 16;
      // Whether the states fit the stage that is read last, so that the others may hold later
      // tiles.
      const bool fits_stage = num_rows <= P::kRowsInStage;
      const int32_t last_task = fits_stage ? t + 1 : t;
      const int row_tile = warps_share_rows ? 0 : warp;
      const auto await_tile = [&] {
        static_assert(P::kStages == 3);  // at most two tiles are on their way behind this one
        if (loaded - computed > 2) {
          ptx::CpAsyncWait<2>();
        } else if (loaded - computed > 1) {
          ptx::CpAsyncWait<1>();
        } else {
          ptx::CpAsyncWait<0>();
        }
        __syncthreads();  // the tile is there for all, and the stage to refill is read by all
        has_tasks = true;
      };
      TileCursor tile(task);
      const bool has_query = comes_with_tile(task) && !(t == task_begin && early) && tile.Valid();
      Query<P> query;
      if (has_query) {
        await_tile();
        query.LoadShared(query_address(t), group);
      } else {
        query.Load(args, task, group, row_tile, kv_head);
      }
      query.Rotate(args, task, group, row_tile);
      RowState<P> state;
      const bool idle = !warps_share_rows && warp * 16 >= num_rows;
      for (bool awaited = has_query; tile.Valid(); tile.Advance(plan.ranges), awaited = false) {
        if (!awaited) await_tile();
#pragma unroll 1
        while (loaded < computed + P::kStages && load_next(last_task, false)) {
        }
        const int valid = tile.Tokens();
        const uint32_t address = stage_address(computed);
        if (warps_share_rows) {
          if (warp * 16 < valid) {
            state.Add(query, address, warp * 16, valid - warp * 16, args.scale_log2);
          }
        } else if (!idle) {
          for (int row = 0; row < valid; row += 16) {
            state.Add(query, address, row, valid - row, args.scale_log2);
          }
        }
        ++computed;
      }
      __syncthreads();  // the last tile is read
      const int read_last = (computed + P::kStages - 1) % P::kStages;
      const SharedStates<P> warps(fits_stage ? shared + read_last * P::kStageBytes : shared,
                                  fits_stage ? num_rows : 16);
      state.Store(warps.outputs + warp * warps.warp_rows * P::kStateStride,
                  warps.max_sum + warp * warps.warp_rows, warps.warp_rows);
      __syncthreads();
      // Partial states are merged when those of this task have been read.
      FinishTask<P, kBundled>(args, task, kv_head, group, members, warps, warps.outputs);
      __syncthreads();  // states and members are read before the next task overwrites them
      if (++t == task_end) return;
      task = task_of(t);
      if (loaded == computed) break;
      open_members();  // of the next task, whose first tile is on its way
    }
  }
}

}  // namespace tokline::chunk_decode
