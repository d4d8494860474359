// A query tile, and the context that it sees as a sequence of KV tiles.
#pragma once

#include <cstdint>

#include "kernels/paged_prefill/packed_rows.h"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// Tokens of one chunk, at most a tile's worth; a tile never holds tokens of two chunks.
struct KvTile {
  int32_t position;      // context position of the tile's first token
  int32_t token;         // index within the chunk of the tile's first token
  int32_t chunk_length;  // tokens in the chunk
  int32_t page_begin;    // the chunk's first page, as an index into chunk_pages
};

// Visits the KV tiles of a query tile's context in order, up to the last one that the query tile
// sees, or those of its part.
template <int kTileTokens>
class ContextWalk {
 public:
  __device__ ContextWalk(const ChunkTableView& table, const PagedPrefillTile& query)
      : table_(table),
        first_{0, 0, query.chunk_length, query.page_begin},
        next_(query.next_chunk),
        end_(query.kv_end) {}
  __device__ ContextWalk(const ChunkTableView& table, const PagedPrefillTile& query,
                         const PagedPrefillPart& part)
      : table_(table),
        first_{part.begin, part.token, query.chunk_length, query.page_begin},
        next_(query.next_chunk),
        end_(part.end) {}

  // Sets `tile` to the first KV tile. Returns false if there is none.
  __device__ bool First(KvTile& tile) {
    tile = first_;
    return end_ > 0 && SkipEnded(tile);
  }

  // Advances `tile` to the next KV tile. Returns false if it was the last one.
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
  KvTile first_;
  int32_t next_;  // index into seq_chunks
  int32_t end_;
};

// Tile `at` of the plan may have a part only if kCut.
template <int kTileTokens, bool kCut>
__device__ ContextWalk<kTileTokens> WalkOf(const PagedPrefillParams& params, int32_t at,
                                           const PagedPrefillTile& query) {
  if constexpr (kCut) {
    if (at < params.num_parts) return {params.table, query, params.parts[at]};
  }
  return {params.table, query};
}

// The state that tile `at` of the plan leaves in the workspace, or -1 if it finishes its rows.
__device__ __forceinline__ int32_t StateOf(const PagedPrefillParams& params, int32_t at) {
  return at < params.num_parts ? params.parts[at].first_state + params.parts[at].index : -1;
}

// What a block knows about its query tile before it touches any data.
struct QueryTile {
  int32_t q_begin;    // the tile's first token among all new tokens
  int32_t num_rows;   // valid packed rows
  int32_t first_end;  // number of context tokens that the tile's first token sees
  int32_t end;        // number that its last token sees

  QueryTile() = default;
  __device__ QueryTile(const PagedPrefillParams& params, const PagedPrefillTile& tile)
      : q_begin(tile.q_begin),
        num_rows(tile.num_tokens * (params.num_q_heads / params.layout.num_kv_heads)),
        first_end(params.causal ? tile.kv_end - tile.num_tokens + 1 : tile.kv_end),
        end(tile.kv_end) {}
};

}  // namespace tokline
