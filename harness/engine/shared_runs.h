// Which runs of the KV cache the decode rows of a step have in common, so that their attention
// reads each of them once: a tree of runs, as the chains of chunks of the rows branch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/step_arrays.h"
#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/sequence_pages.h"
#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// Most of a sequence. What lies deeper in the tree each sequence reads alone.
inline constexpr int32_t kMaxSharedRuns = 4;

// Tokens [begin, end) of `members` sequences that have all chunks up to the end in common.
struct SharedRun {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t members = 0;
};

struct SharedRuns {
  std::vector<SharedRun> runs;
  std::vector<int32_t> of_rows;  // [rows, kMaxSharedRuns] indices of runs; -1: none

  bool Empty() const { return runs.empty(); }
  // The runs of a row, which cover its context from its first token on without gaps.
  std::span<const int32_t> Of(size_t row) const;
  // That need not be read, of all rows' contexts.
  int64_t TokensSaved(int32_t group) const;
};

// `chains`: the chunks that each row's context begins with; none for a padding row. A run ends
// where a chunk does; kWhenItPays cuts it where no tile of chunk_decode is divided and keeps it if
// reading it once pays for `group` query heads a KV head.
SharedRuns FindSharedRuns(std::span<const std::span<const ChunkId>> chains,
                          const ChunkRegistry& registry, int32_t page_size, int32_t group,
                          ChunkSharing sharing);

// Writes the contexts of decode rows, one after the other: what rows share as chunks that each of
// them lists, the rest as chunks of its own. Borrows `table` and `shared`.
class SharedTableWriter {
 public:
  SharedTableWriter(TableWriter& table, const SharedRuns& shared, int32_t page_size)
      : table_(table), shared_(shared), page_size_(page_size), chunks_(shared.runs.size()) {}

  // Of the row: `length` tokens on these pages.
  void Add(size_t row, const SequencePages& pages, int64_t length);

 private:
  TableWriter& table_;
  const SharedRuns& shared_;
  int32_t page_size_;
  std::vector<std::vector<int32_t>> chunks_;  // of each shared run, once it is written
};

}  // namespace tokline
