// A sequence's context as a run of KV tiles, and a tile's way from the paged pool to shared memory.
#pragma once

#include <cstdint>

#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/paged_prefill/packed_rows.h"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// Up to a tile's tokens of one chunk; a tile never holds tokens of two.
struct KvTile {
  int32_t position;      // of its first token in the context
  int32_t token;         // of its first token in the chunk
  int32_t chunk_length;  // tokens of the chunk
  int32_t page_begin;    // index into chunk_pages of the chunk's first page
};

// Visits the KV tiles of a query tile's context in order, up to the last that it sees.
template <int kTileTokens>
class ContextWalk {
 public:
  __device__ ContextWalk(const ChunkTableView& table, const PagedPrefillTile& query)
      : table_(table), next_(query.next_chunk), end_(query.kv_end) {}

  // Turns `tile` into the first one; false: there is none.
  __device__ bool First(KvTile& tile, const PagedPrefillTile& query) {
    tile = {0, 0, query.chunk_length, query.page_begin};
    return end_ > 0 && SkipEnded(tile);
  }

  // Turns `tile` into the one that follows it; false: it was the last.
  __device__ bool Next(KvTile& tile) {
    tile.position += kTileTokens;
    tile.token += kTileTokens;
    return SkipEnded(tile);
  }

 private:
  __device__ bool SkipEnded(KvTile& tile) {
    while (tile.token >= tile.chunk_length) {
      tile.position += tile.chunk_length - tile.token;
      if (tile.position >= end_) return false;
      const int32_t chunk = table_.seq_chunks[next_++];
      tile.token = 0;
      tile.chunk_length = table_.chunk_lengths[chunk];
      tile.page_begin = table_.chunk_page_indptr[chunk];
    }
    return tile.position < end_;
  }

  const ChunkTableView& table_;
  int32_t next_;  // index into seq_chunks
  int32_t end_;
};

// What a block knows of its query tile before it touches any data.
struct QueryTile {
  int32_t q_begin;    // first token of the tile among all new tokens
  int32_t num_rows;   // valid packed rows
  int32_t first_end;  // context tokens that the tile's first token sees
  int32_t end;        // and its last

  QueryTile() = default;
  __device__ QueryTile(const PagedPrefillParams& params, const PagedPrefillTile& tile)
      : q_begin(tile.q_begin),
        num_rows(tile.num_tokens * (params.num_q_heads / params.layout.num_kv_heads)),
        first_end(params.causal ? tile.kv_end - tile.num_tokens + 1 : tile.kv_end),
        end(tile.kv_end) {}
};

// Brings a tile's K rows (or V rows) of one head to `shared`, placed as Placement says, with
// kThreads threads of which the caller is `thread`. Rows beyond the chunk become zero: what dead
// slots hold, NaN included, never reaches the tensor cores.
template <typename T, int kHeadDim, int kTileTokens, int kThreads, typename Placement>
__device__ __forceinline__ void LoadKvTile(uint32_t shared, const T* __restrict__ pool,
                                           const PagedKvLayout& layout,
                                           const int32_t* __restrict__ chunk_pages,
                                           const KvTile& tile, int32_t head, int thread) {
  constexpr int kSegments = kHeadDim / 8;
  constexpr int kPassRows = kThreads / kSegments;
  constexpr int kPageUnit = 16;  // every page starts at a multiple of it
  static_assert(kPageUnit % kPassRows == 0 && kPassRows % 8 == 0);
  const int thread_row = thread / kSegments;
  const int segment = thread % kSegments;
  const int32_t page_mask = layout.page_size - 1;
  const int page_shift = __ffs(layout.page_size) - 1;
  const uint32_t target = shared + Placement::Offset(thread_row, segment);
  const T* source = pool;
#pragma unroll
  for (int unit = 0; unit < kTileTokens; unit += kPageUnit) {
    const int32_t token = tile.token + unit;
    if (unit == 0 || (token & page_mask) == 0) {
      const int32_t page_index = min(token, tile.chunk_length - 1) >> page_shift;
      const int64_t page = chunk_pages[tile.page_begin + page_index];
      source = pool + layout.KeyOffset(page, head, (token & page_mask) + thread_row) + segment * 8;
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

// Brings the query rows of a tile to `shared`; rows that it lacks become zero.
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

}  // namespace tokline
