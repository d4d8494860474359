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

// Most runs of a sequence. What lies deeper in the tree each sequence reads alone.
inline constexpr int32_t kMaxSharedRuns = 4;

// The shared runs of rows whose contexts begin with these chains of chunks; a padding row has none.
// The runs of a row cover its context from the first token on without gaps, in the order of the
// result, and begin in the order of their first members. Their chunks in the step's table follow
// when SharedTableWriter writes it. A run ends where a chunk does; kWhenItPays cuts it where no
// tile of chunk_decode is divided, and keeps it if SharingPays for `group` query heads per KV head.
std::vector<SharedRun> SharedRunsOfChains(std::span<const std::span<const ChunkId>> chains,
                                          const ChunkRegistry& registry, int32_t page_size,
                                          int32_t group, ChunkSharing sharing);

// Writes the contexts of decode rows, one after the other: what rows share as chunks that each of
// them lists, the rest as chunks of its own. Borrows `table` and `runs`, and gives the runs their
// chunks.
class SharedTableWriter {
 public:
  SharedTableWriter(TableWriter& table, std::span<SharedRun> runs, int32_t page_size);

  // Of the row: `length` tokens on these pages.
  void Add(size_t row, const SequencePages& pages, int64_t length);

 private:
  TableWriter& table_;
  std::span<SharedRun> runs_;
  int32_t page_size_;
  std::vector<std::vector<size_t>> runs_of_rows_;  // indices; rows behind the last share nothing
};

}  // namespace tokline
