// How the kernels of chunk_decode read: they walk the ranges of tasks, and load their tokens and
// queries into shared memory.
//
// Shared memory: a ring [stage][K | V][64][head_dim], whose 16-byte pieces are XOR-swizzled by row.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/device/ptx/cache_policy.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/swizzle.cuh"

namespace tokline::chunk_decode {

// Walks the ranges of a task, kTokens at a time.
template <int kTokens>
struct TokenCursor {
  int32_t range = 0;
  int32_t range_end = 0;
  int32_t page_begin = 0;
  int32_t token = 0;
  int32_t token_end = 0;

  TokenCursor() = default;
  __device__ explicit TokenCursor(const ChunkDecodeTask& task)
      : range(task.range_begin),
        range_end(task.range_end),
        page_begin(task.first_range.page_begin),
        token(task.first_range.token_begin),
        token_end(task.first_range.token_end) {}
  __device__ bool Valid() const { return range < range_end; }
  // Whether these tokens are the task's last.
  __device__ bool IsLast() const { return range + 1 == range_end && token + kTokens >= token_end; }
  __device__ int32_t Tokens() const { return min(kTokens, token_end - token); }
  __device__ void Advance(const ChunkDecodeRange* ranges) {
    token += kTokens;
    if (token < token_end || ++range == range_end) return;
    const ChunkDecodeRange opened = ranges[range];
    page_begin = opened.page_begin;
    token = opened.token_begin;
    token_end = opened.token_end;
  }
};

using TileCursor = TokenCursor<kChunkDecodeTileTokens>;

// The index in chunk_pages of the page of 16 tokens: ranges begin at multiples of 16.
template <int kTokens>
__device__ __forceinline__ int32_t PageIndexOf(const Arguments& args,
                                               const TokenCursor<kTokens>& cursor, int32_t token) {
  return cursor.page_begin + args.kv_bytes.pages.PageOf(token);
}
template <int kTokens>
__device__ __forceinline__ int32_t PageOf(const Arguments& args, const TokenCursor<kTokens>& cursor,
                                          int32_t token) {
  if (token >= cursor.token_end) return 0;
  return __ldg(args.params.table.chunk_pages + PageIndexOf(args, cursor, token));
}

// The page of the 16 tokens that a warp loads next. It is looked up unless it is the page of the
// previous 16.
template <typename P>
struct PageLookup {
  // At head_dim 64 no register is left to remember the page.
  static constexpr bool kKeeps = P::kHeadDim > 64;
  int32_t page;
  int32_t index = -1;  // in chunk_pages

  // Starts at the lane's first tile. The warp loads the tile's 16 tokens from token 16 * `sixteen`
  // on. If there are none, no page is known.
  template <int kTokens>
  __device__ __forceinline__ PageLookup(const Arguments& args, int lane_of_plan,
                                        const TokenCursor<kTokens>& cursor, int sixteen)
      : page(args.params.plan.lane_starts[lane_of_plan].pages[sixteen]) {
    const int32_t token = cursor.token + sixteen * 16;
    if (cursor.Valid() && token < cursor.token_end) index = PageIndexOf(args, cursor, token);
  }
  template <int kTokens>
  __device__ __forceinline__ void Find(const Arguments& args, const TokenCursor<kTokens>& cursor,
                                       int32_t token) {
    if (token >= cursor.token_end) return;
    const int32_t at = PageIndexOf(args, cursor, token);
    if (kKeeps && at == index) return;
    index = at;
    page = __ldg(args.params.table.chunk_pages + at);
  }
};

// Issues the copies of 16 tokens from `token`, K and V, by one warp. Rows past the range's end
// become zeros, so that the contents of dead slots (which may be NaN) never reach the MMA. If all
// 16 tokens lie past it, no warp reads them. The range's last token may be left to a LateRow.
// `keys_address` is the place of the first token's key; its value lies P::kTileBytes further.
template <typename P>
__device__ __forceinline__ void LoadTokens(const Arguments& args, int32_t token, int32_t token_end,
                                           int32_t page, int kv_head, uint32_t keys_address,
                                           bool leaves_last) {
  constexpr int kRowsAtOnce = 32 / P::kPieces;
  const uint32_t lane = ptx::HereAndNow(threadIdx.x) % 32;
  const int first_row = lane / P::kPieces, piece = lane % P::kPieces;
  const int32_t first_token = token + first_row;
  const char* key = static_cast<const char*>(args.params.kv) +
                    args.kv_bytes.KeyOffset(page, kv_head, args.kv_bytes.pages.RowOf(first_token)) +
                    piece * 16;
  const uint32_t first_to = keys_address + SwizzledOffset<P::kRowBytes>(first_row, piece);
  if (token >= token_end) return;
  const uint64_t policy = ptx::EvictFirstConstant();
#pragma unroll
  for (int i = 0; i < 16 / kRowsAtOnce; ++i, key += kRowsAtOnce * args.kv_bytes.row) {
    const int32_t at = first_token + i * kRowsAtOnce;
    if (leaves_last && at == token_end - 1) continue;
    const bool valid = at < token_end;  // the row is one of the page in any case
    const uint32_t to = SwizzledRow<P::kRowBytes>(first_to, i * kRowsAtOnce);
    ptx::CpAsync16(to, key, valid, policy);
    ptx::CpAsync16(to + P::kTileBytes, key + args.kv_bytes.value, valid, policy);
  }
}

// Where a warp's share of a tile begins: the first of its 16 tokens.
__device__ __forceinline__ uint32_t FirstTokenOfWarp() {
  return ptx::HereAndNow(threadIdx.x) / 32 * 16;
}

// Issues the copies of this warp's 16 tokens of a tile. With at most 16 query rows no other warp
// reads them.
template <typename P>
__device__ __forceinline__ void LoadTile(const Arguments& args, const TileCursor& cursor,
                                         int32_t page, int kv_head, uint32_t stage_address,
                                         bool leaves_last) {
  const uint32_t first = FirstTokenOfWarp();
  LoadTokens<P>(args, cursor.token + static_cast<int32_t>(first), cursor.token_end, page, kv_head,
                stage_address + first * P::kRowBytes, leaves_last);
}

// The tiles in flight, oldest first, in a ring of stages in shared memory: those of a block, or
// those of a warp in its sixteen rows of every stage.
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
  // Waits for the part of the oldest tile that this thread has loaded.
  __device__ __forceinline__ void AwaitMine() const {
    static_assert(P::kStages == 3);  // at most two tiles are in flight behind it
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

// The last row of a task. The previous kernel may still be writing its K and V while the other
// tokens are loaded.
template <typename P>
struct LateRow {
  const char* key = nullptr;
  uint32_t to = 0;

  LateRow() = default;
  // Made by the warp that loads the tokens before it. It is row `row` of the 16 whose first key is
  // at `keys_address`.
  __device__ __forceinline__ LateRow(const Arguments& args, int32_t token, int32_t page,
                                     int kv_head, uint32_t keys_address, int row) {
    const int piece = threadIdx.x % 32;
    if (piece >= P::kPieces) return;
    key = static_cast<const char*>(args.params.kv) +
          args.kv_bytes.KeyOffset(page, kv_head, args.kv_bytes.pages.RowOf(token)) + piece * 16;
    to = keys_address + SwizzledOffset<P::kRowBytes>(row, piece);
  }
  // The late row of a block's tile, which is the last of its task.
  static __device__ __forceinline__ LateRow OfTile(const Arguments& args, const TileCursor& cursor,
                                                   int32_t page, int kv_head,
                                                   uint32_t stage_address) {
    const int row = cursor.Tokens() - 1, warp = threadIdx.x / 32;
    if (row / 16 != warp) return {};
    return LateRow(args, cursor.token_end - 1, page, kv_head,
                   stage_address + warp * 16 * P::kRowBytes, row % 16);
  }

  // Issues the copies, in a group of their own.
  __device__ __forceinline__ void Load(const Arguments& args) const {
    if (key == nullptr) return;
    ptx::CpAsync16(to, key, true);
    ptx::CpAsync16(to + P::kTileBytes, key + args.kv_bytes.value, true);
    ptx::CpAsyncCommit();
  }
};

// Issues the copies of the query rows of a sequence; this is thread number `thread` of those that
// share the work.
template <typename P>
__device__ __forceinline__ void LoadQuery(const Arguments& args, int32_t seq, int kv_head,
                                          int group, uint32_t rows_address, int thread,
                                          int num_threads) {
  const char* const from =
      static_cast<const char*>(args.params.q) +
      2 * (seq * args.params.q_stride + int64_t{kv_head} * group * P::kHeadDim);
  for (int i = thread; i < group * P::kPieces; i += num_threads) {
    ptx::CpAsync16(rows_address + SwizzledOffset<P::kRowBytes>(i / P::kPieces, i % P::kPieces),
                   from + i * 16, true);
  }
}

}  // namespace tokline::chunk_decode
