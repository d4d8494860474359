// Walks through the context of a sequence, in the order of its chunks.
#pragma once

#include <cstdint>

#include "kernels/common/chunk_table.h"

namespace tokline::testing {

struct SequenceToken {
  int32_t listing;  // of its chunk: an index into seq_chunks and seq_shifts
  int32_t chunk;
  int32_t index;  // within the chunk
  int32_t page;
  int32_t row;  // of the page
};

// Calls visit(token) for every token of a sequence of a host table.
template <typename Visit>
void ForEachTokenOf(const ChunkTableView& table, int32_t seq, int32_t page_size, Visit&& visit) {
  for (int32_t i = table.seq_chunk_indptr[seq]; i < table.seq_chunk_indptr[seq + 1]; ++i) {
    const int32_t chunk = table.seq_chunks[i];
    const int32_t* const pages = table.chunk_pages + table.chunk_page_indptr[chunk];
    for (int32_t t = 0; t < table.chunk_lengths[chunk]; ++t) {
      visit(SequenceToken{.listing = i,
                          .chunk = chunk,
                          .index = t,
                          .page = pages[t / page_size],
                          .row = t % page_size});
    }
  }
}

}  // namespace tokline::testing
