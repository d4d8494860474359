// Builds chunk tables and checks them against a layout.
#include "kernels/common/chunk_table.h"

#include "kernels/common/error.h"

namespace tokline {

int32_t ChunkTable::AddChunk(std::span<const int32_t> pages, int32_t length) {
  chunk_pages_.insert(chunk_pages_.end(), pages.begin(), pages.end());
  chunk_page_indptr_.push_back(static_cast<int32_t>(chunk_pages_.size()));
  chunk_lengths_.push_back(length);
  return static_cast<int32_t>(chunk_lengths_.size()) - 1;
}

int32_t ChunkTable::AddSequence(std::span<const int32_t> chunks, std::span<const int32_t> shifts) {
  Require(shifts.empty() || shifts.size() == chunks.size(), "sequence lists ", chunks.size(),
          " chunks and ", shifts.size(), " shifts; there must be as many or none");
  seq_chunks_.insert(seq_chunks_.end(), chunks.begin(), chunks.end());
  if (shifts.empty()) {
    seq_shifts_.resize(seq_chunks_.size(), 0);
  } else {
    seq_shifts_.insert(seq_shifts_.end(), shifts.begin(), shifts.end());
  }
  seq_chunk_indptr_.push_back(static_cast<int32_t>(seq_chunks_.size()));
  return static_cast<int32_t>(seq_chunk_indptr_.size()) - 2;
}

void ChunkTable::Clear() { *this = ChunkTable(); }

ChunkTableView ChunkTable::View() const {
  return {.num_seqs = static_cast<int32_t>(seq_chunk_indptr_.size()) - 1,
          .num_chunks = static_cast<int32_t>(chunk_lengths_.size()),
          .seq_chunk_indptr = seq_chunk_indptr_.data(),
          .seq_chunks = seq_chunks_.data(),
          .seq_shifts = seq_shifts_.data(),
          .chunk_page_indptr = chunk_page_indptr_.data(),
          .chunk_pages = chunk_pages_.data(),
          .chunk_lengths = chunk_lengths_.data()};
}

int64_t ChunkTable::SequenceLength(int32_t seq) const {
  return tokline::SequenceLength(View(), seq);
}

int64_t SequenceLength(const ChunkTableView& table, int32_t seq) {
  int64_t length = 0;
  for (int32_t i = table.seq_chunk_indptr[seq]; i < table.seq_chunk_indptr[seq + 1]; ++i) {
    length += table.chunk_lengths[table.seq_chunks[i]];
  }
  return length;
}

std::vector<int64_t> SequenceLengths(const ChunkTableView& table) {
  std::vector<int64_t> lengths;
  for (int32_t s = 0; s < table.num_seqs; ++s) lengths.push_back(SequenceLength(table, s));
  return lengths;
}

void Validate(const ChunkTableView& table, const PagedKvLayout& layout) {
  Validate(layout);
  Require(table.num_seqs >= 0 && table.num_chunks >= 0, "chunk table has num_seqs ", table.num_seqs,
          " and num_chunks ", table.num_chunks, "; both must be >= 0");
  if (table.num_chunks > 0) {
    Require(table.chunk_page_indptr && table.chunk_lengths,
            "chunk table lacks chunk_page_indptr or chunk_lengths");
    Require(table.chunk_page_indptr[0] == 0, "chunk_page_indptr[0] is ", table.chunk_page_indptr[0],
            "; it must be 0");
  }
  for (int32_t c = 0; c < table.num_chunks; ++c) {
    const int64_t begin = table.chunk_page_indptr[c], end = table.chunk_page_indptr[c + 1];
    Require(begin <= end, "chunk_page_indptr falls from ", begin, " to ", end, " at chunk ", c);
    const int64_t length = table.chunk_lengths[c];
    const int64_t most = layout.Pages().TokensIn(end - begin);
    Require(length >= 0 && length <= most, "chunk ", c, " has length ", length, "; its ",
            end - begin, " pages of ", layout.page_size, " hold 0 to ", most);
    for (int64_t p = begin; p < end; ++p) {
      Require(table.chunk_pages[p] >= 0 && table.chunk_pages[p] < layout.num_pages, "chunk ", c,
              " lists page ", table.chunk_pages[p], "; the pool has pages 0 to ",
              layout.num_pages - 1);
    }
  }
  if (table.num_seqs > 0) {
    Require(table.seq_chunk_indptr && table.seq_chunk_indptr[0] == 0,
            "seq_chunk_indptr is missing or does not start at 0");
  }
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    const int32_t begin = table.seq_chunk_indptr[s], end = table.seq_chunk_indptr[s + 1];
    Require(begin <= end, "seq_chunk_indptr falls from ", begin, " to ", end, " at sequence ", s);
    for (int32_t i = begin; i < end; ++i) {
      Require(table.seq_chunks[i] >= 0 && table.seq_chunks[i] < table.num_chunks, "sequence ", s,
              " lists chunk ", table.seq_chunks[i], "; the table has chunks 0 to ",
              table.num_chunks - 1);
    }
    Require(SequenceLength(table, s) <= kMaxSequenceTokens, "sequence ", s, " has ",
            SequenceLength(table, s), " tokens; at most ", kMaxSequenceTokens, " are supported");
  }
}

}  // namespace tokline
