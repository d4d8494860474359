// Grid: one block of 4 warps per lane and KV head. It runs the lane's tasks in order, streams
//   64-token K and V tiles through a cp.async ring and keeps an online softmax per query row.
// Rows: the query rows of a task (members x heads of the group) fill MMA tiles of 16 rows. With at
//   most 16 rows the warps share the row tile, and each takes 16 tokens of every tile. With up to
//   64 rows each warp owns a row tile and takes all tokens.
// Loads: a warp loads the 16 tokens of a tile that it takes if warps share the rows. They lie on
//   one page, and no other warp waits for them, so only a task's first tile has a barrier.
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

// The page of a warp's 16 tokens of a tile: ranges begin at multiples of 16.
__device__ __forceinline__ int32_t PageOfWarp(const Arguments& args, const TileCursor& cursor) {
  const int32_t token = cursor.token + static_cast<int32_t>(threadIdx.x / 32) * 16;
  if (token >= cursor.token_end) return 0;
  return __ldg(args.params.table.chunk_pages + cursor.page_begin +
               args.kv_bytes.pages.PageOf(token));
}

// Issues the copies of a warp's 16 tokens of a K and V tile, which with at most 16 query rows no
// other warp reads. Rows past the range's end become zeros, so that the contents of dead slots
// (which may be NaN) never reach the MMA; nobody reads 16 tokens that all lie past it. The range's
// last token may be left to a LateRow.
template <typename P>
__device__ __forceinline__ void LoadTile(const Arguments& args, const TileCursor& cursor,
                                         int32_t page, int kv_head, uint32_t stage_address,
                                         bool leaves_last) {
  constexpr int kRowsAtOnce = 32 / P::kPieces;
  const uint32_t thread = ptx::HereAndNow(threadIdx.x);
  const int first_row = thread / 32 * 16 + thread % 32 / P::kPieces;
  const int piece = thread % P::kPieces;
  const int32_t first_token = cursor.token + first_row;
  const char* key = static_cast<const char*>(args.params.kv) +
                    args.kv_bytes.KeyOffset(page, kv_head, args.kv_bytes.pages.RowOf(first_token)) +
                    piece * 16;
  const uint32_t first_to = stage_address + SwizzledOffset<P::kRowBytes>(first_row, piece);
  if (cursor.token + static_cast<int32_t>(thread / 32) * 16 >= cursor.token_end) return;
#pragma unroll
  for (int i = 0; i < 16 / kRowsAtOnce; ++i, key += kRowsAtOnce * args.kv_bytes.row) {
    const int32_t token = first_token + i * kRowsAtOnce;
    if (leaves_last && token == cursor.token_end - 1) continue;
    const bool valid = token < cursor.token_end;  // the row is one of the page in any case
    const uint32_t to = SwizzledRow<P::kRowBytes>(first_to, i * kRowsAtOnce);
    ptx::CpAsync16(to, key, valid);
    ptx::CpAsync16(to + P::kTileBytes, key + args.kv_bytes.value, valid);
  }
}

// The tiles of a block that are on their way, oldest first, in a ring of stages in shared memory.
template <typename P>
struct TileRing {
  uint32_t ring;        // the address of the first stage
  uint32_t to_compute;  // that of the oldest tile
  int on_way = 0;
  uint32_t lengths = 0;  // a byte for each tile: its tokens, and a bit if it is its task's last
  static constexpr uint32_t kLast = 128;
  static_assert(kChunkDecodeTileTokens < kLast && P::kStages <= 4);

  __device__ __forceinline__ explicit TileRing(uint32_t address)
      : ring(address), to_compute(address) {}
  __device__ __forceinline__ uint32_t After(uint32_t stage, int count) const {
    constexpr uint32_t kRingBytes = P::kStages * P::kStageBytes;
    const uint32_t address = stage + count * P::kStageBytes;
    return address < ring + kRingBytes ? address : address - kRingBytes;
  }
  __device__ __forceinline__ uint32_t ToLoad() const { return After(to_compute, on_way); }
  __device__ __forceinline__ uint32_t LastComputed() const {
    return After(to_compute, P::kStages - 1);
  }
  __device__ __forceinline__ void Load(int tokens, bool last) {
    lengths |= (static_cast<uint32_t>(tokens) | (last ? kLast : 0)) << (on_way * 8);
    ++on_way;
  }
  // Waits for what this thread has loaded of the oldest tile.
  __device__ __forceinline__ void AwaitMine() const {
    static_assert(P::kStages == 3);  // at most two tiles are on their way behind it
    if (on_way > 2) {
      ptx::CpAsyncWait<2>();
    } else if (on_way > 1) {
      ptx::CpAsyncWait<1>();
    } else {
      ptx::CpAsyncWait<0>();
    }
  }
  __device__ __forceinline__ int Tokens() const { return static_cast<int>(lengths % kLast); }
  __device__ __forceinline__ bool IsLast() const { return lengths & kLast; }
  __device__ __forceinline__ void Computed() {
    to_compute = After(to_compute, 1);
    lengths >>= 8;
    --on_way;
  }
};

// The last row of a task, whose K and V the kernel before may still write while the rest of the
// tile is loaded. It belongs to the warp that has the tokens before it.
template <typename P>
struct LateRow {
  const char* key = nullptr;
  uint32_t to = 0;

  LateRow() = default;
  __device__ __forceinline__ LateRow(const Arguments& args, const TileCursor& cursor, int32_t page,
                                     int kv_head, uint32_t stage_address) {
    const int row = cursor.Tokens() - 1, piece = threadIdx.x % 32;
    if (static_cast<int>(threadIdx.x / 32) != row / 16 || piece >= P::kPieces) return;
    const int32_t row_of_page = args.kv_bytes.pages.RowOf(cursor.token_end - 1);
    key = static_cast<const char*>(args.params.kv) +
          args.kv_bytes.KeyOffset(page, kv_head, row_of_page) + piece * 16;
    to = stage_address + SwizzledOffset<P::kRowBytes>(row, piece);
  }

  // Issues the copies, in a group of their own.
  __device__ __forceinline__ void Load(const Arguments& args) const {
    if (key == nullptr) return;
    ptx::CpAsync16(to, key, true);
    ptx::CpAsync16(to + P::kTileBytes, key + args.kv_bytes.value, true);
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

  // Adds 16 tokens of a tile, of which the first `valid` (>= 1) count. `keys_address` is that of
  // the first one's key.
  __device__ __forceinline__ void Add(const Query<P>& query, uint32_t keys_address, int valid,
                                      float scale_log2) {
    using T = typename P::T;
    const uint32_t lane = ptx::HereAndNow(threadIdx.x) % 32;
    // Matrices are loaded in fours: rows 0 to 7 and 8 to 15 of a segment, then of the next one.
    const uint32_t first_matrix =
        keys_address + SwizzledOffset<P::kRowBytes>(lane / 8 % 2 * 8 + lane % 8, lane / 16);
    float scores[2][4] = {};
    {
      float odd_scores[2][4] = {};  // of odd steps, which gives four independent chains of MMAs
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        uint32_t keys[4];
        ptx::LdMatrixX4(keys, SwizzledSegment(first_matrix, s * 2));
        ptx::MmaM16N8K16<T>(s % 2 ? odd_scores[0] : scores[0], query.words[s], keys[0], keys[2]);
        ptx::MmaM16N8K16<T>(s % 2 ? odd_scores[1] : scores[1], query.words[s], keys[1], keys[3]);
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
          const int column = n * 8 + static_cast<int>(lane) % 4 * 2 + c;
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
#pragma unroll
    for (int n = 0; n < P::kHeadDim / 16; ++n) {
      uint32_t values[4];
      ptx::LdMatrixX4Trans(values, SwizzledSegment(first_matrix, n * 2) + P::kTileBytes);
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
  // Tiles are loaded ahead of the one that is computed, and beyond the end of a task if its states
  // leave room for them. The query rows of a task with one member come with its first tile: a load
  // at its begin would wait behind all tiles that are on their way. Two places suffice for them,
  // since no tile is loaded of a task beyond the next one, and barriers lie between the end of a
  // task and the loads of the next but one.
  TileRing<P> tiles(ring);
  ChunkDecodeTask task = plan.tasks[task_begin];  // that is computed
  int32_t next_task = task_begin;                 // that the next tile to load belongs to
  TileCursor next(task);
  int32_t page = 0;  // of the next tile
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
    if (next.Valid()) page = PageOfWarp(args, next);
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
    if (leaves_last) late = LateRow<P>(args, next, page, kv_head, tiles.ToLoad());
    LoadTile<P>(args, next, page, kv_head, tiles.ToLoad(), leaves_last);
    if (next_query >= 0) {
      LoadQuery<P>(args, next_query, kv_head, group, query_address(next_task));
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
    // A third tile on its way gains where blocks have one task, and loses where they have more.
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
      // Whether the states fit the stage that is read last, so that the others may hold later
      // tiles.
      const bool fits_stage = num_rows <= P::kRowsInStage;
      const int32_t last_task = fits_stage ? t + 1 : t;
      const int row_tile = warps_share_rows ? 0 : warp;
      // Waits for the next tile, of this warp or of all.
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
      Query<P> query;
      if (arrived) {
        await_tile(true);
        query.LoadShared(query_address(t), group);
      } else {
        query.Load(args, task, group, row_tile, kv_head);
      }
      query.Rotate(args, task, group, row_tile);
      RowState<P> state;
      const bool idle = !warps_share_rows && warp * 16 >= num_rows;
      // The first tile is awaited by all, since it brings the query and the lane's tasks.
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
      // Partial states are merged when those of this task have been read.
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
