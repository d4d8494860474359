// Finds the runs of the KV cache that several decode rows of a step share, so that attention reads
// each run once. The runs form a tree, because the rows' chains of chunks branch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/step_arrays.h"
#include "harness/scheduler/chunk_registry.h"
#include "harness/scheduler/sequence_pages.h"
#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// The maximum number of shared runs per sequence. Each sequence reads deeper parts of the tree
// separately.
inline constexpr int32_t kMaxSharedRuns = 4;

// Returns the shared runs of rows whose contexts begin with these chains of chunks; a padding row
// has an empty chain. The runs of a row cover its context without gaps from the first token on.
// They are in the order of the context, and all runs are sorted by their first members.
// SharedTableWriter later sets their chunks. With kAlways, a run ends at the end of a chunk. With
// kWhenItPays, it ends where no tile of chunk_decode is divided, and is kept only if SharingPays
// for `group` query heads per KV head.
std::vector<SharedRun> SharedRunsOfChains(std::span<const std::span<const ChunkId>> chains,
                                          const ChunkRegistry& registry, const PageSplit& split,
                                          int32_t group, ChunkSharing sharing);

// Writes the contexts of decode rows one after another. All members of a shared run list the same
// chunks; the rest of a row is written as chunks that only it lists. Keeps references to `table`
// and `runs`, and sets the chunks of the runs.
class SharedTableWriter {
 public:
  SharedTableWriter(TableWriter& table, std::span<SharedRun> runs, const PageSplit& split);

  // Writes the context of row `row`: `length` tokens on these pages.
  void Add(size_t row, const SequencePages& pages, int64_t length);

 private:
  TableWriter& table_;
  std::span<SharedRun> runs_;
  PageSplit split_;
  std::vector<std::vector<size_t>> runs_of_rows_;  // indices; rows after the last share nothing
};

}  // namespace tokline
