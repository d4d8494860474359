// The KV that each sequence attends to: a list of chunks, each of which is a list of pages and a
// length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// The most tokens of a sequence: kernels count tokens in int32, in tiles of up to 128.
inline constexpr int64_t kMaxSequenceTokens = INT32_MAX - 127;

// Two CSR tables in int32 arrays, which are either all on the host or all on the device. A
// sequence's context is the concatenation of its chunks in order. A chunk that several sequences
// list is stored once. A chunk's last page may be partly filled; chunks and sequences may be empty.
struct ChunkTableView {
  int32_t num_seqs = 0;
  int32_t num_chunks = 0;
  const int32_t* seq_chunk_indptr = nullptr;   // [num_seqs + 1] into seq_chunks and seq_shifts
  const int32_t* seq_chunks = nullptr;         // [seq_chunk_indptr[num_seqs]] chunk ids
  const int32_t* seq_shifts = nullptr;         // same shape: position shifts; keys act as if
                                               // rotated by that many more positions; null: all 0
  const int32_t* chunk_page_indptr = nullptr;  // [num_chunks + 1] into chunk_pages
  const int32_t* chunk_pages = nullptr;        // [chunk_page_indptr[num_chunks]] page ids
  const int32_t* chunk_lengths = nullptr;      // [num_chunks] tokens
};

// Owns a table on the host. A chunk may have more pages than its length needs (reserved room).
class ChunkTable {
 public:
  // Returns the chunk's id.
  int32_t AddChunk(std::span<const int32_t> pages, int32_t length);
  // `shifts` is either empty (all shifts are 0) or as long as `chunks`. Returns the sequence's
  // index.
  int32_t AddSequence(std::span<const int32_t> chunks, std::span<const int32_t> shifts = {});
  void Clear();

  ChunkTableView View() const;
  int64_t SequenceLength(int32_t seq) const;

 private:
  std::vector<int32_t> seq_chunk_indptr_{0};
  std::vector<int32_t> seq_chunks_;
  std::vector<int32_t> seq_shifts_;
  std::vector<int32_t> chunk_page_indptr_{0};
  std::vector<int32_t> chunk_pages_;
  std::vector<int32_t> chunk_lengths_;
};

// The number of tokens in the context of sequence `seq`. The table must be on the host.
int64_t SequenceLength(const ChunkTableView& table, int32_t seq);
// The same of each sequence.
std::vector<int64_t> SequenceLengths(const ChunkTableView& table);

// Checks a host table: the index arrays are ascending, chunk and page ids are in range, and each
// chunk's pages can hold its length. Throws InvalidArgument, which names the sequence or chunk.
void Validate(const ChunkTableView& table, const PagedKvLayout& layout);

}  // namespace tokline
