// Sorts the rows by their chains of chunks, so that rows with a common prefix are neighbours, and
// searches the resulting tree for shared runs.
#include "harness/engine/shared_runs.h"

#include <algorithm>

#include "kernels/common/rounding.h"

namespace tokline {
namespace {

struct Row {
  std::span<const ChunkId> chunks;
  size_t row;
};

// Returns the number of leading chunks that two chains share, which is at least `known`. Chains
// that share a chunk share all chunks before it, so bisection finds the number.
size_t CommonChunks(const Row& a, const Row& b, size_t known) {
  size_t low = known, high = std::min(a.chunks.size(), b.chunks.size());
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (a.chunks[middle] == b.chunks[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool Before(const Row& a, const Row& b) {
  if (a.chunks[0] != b.chunks[0]) return a.chunks[0] < b.chunks[0];
  const size_t common = CommonChunks(a, b, 1);
  if (common == b.chunks.size()) return false;
  return common == a.chunks.size() || a.chunks[common] < b.chunks[common];
}

// Tokens that some rows share and that belong to no run yet.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t tiles = 0;  // number of tiles in the page runs that have ended
  int64_t tail = 0;   // number of tokens in the last page run

  void Add(int64_t tokens, const PageSplit& split) {
    end += tokens;
    tail += tokens;
    if (split.Fill(tokens)) return;
    tiles += DivideUp(tail, kChunkDecodeTileTokens);
    tail = 0;
  }
};

class Search {
 public:
  Search(const ChunkRegistry& registry, const PageSplit& split, int32_t group, bool always,
         std::vector<SharedRun>& found)
      : registry_(registry), split_(split), group_(group), always_(always), found_(found) {}

  // `rows` are sorted and share their first `common` chunks. All of these chunks but the stretch
  // are in the `depth` runs that the rows already have.
  void Branches(std::span<const Row> rows, size_t common, const Stretch& stretch, int32_t depth) {
    while (!rows.empty()) {
      const auto other = std::ranges::find_if(
          rows, [&](const Row& row) { return Branch(row, common) != Branch(rows[0], common); });
      const auto same = rows.first(static_cast<size_t>(other - rows.begin()));
      if (same.size() > 1 && Branch(same[0], common) != kRootChunk) {
        Trunk(same, common, stretch, depth);
      }
      rows = rows.subspan(same.size());
    }
  }

 private:
  // Returns the row's chunk at this depth, or kRootChunk if its chunks end before. Such rows come
  // first.
  static ChunkId Branch(const Row& row, size_t at) {
    return at < row.chunks.size() ? row.chunks[at] : kRootChunk;
  }

  // Handles the chunks that all rows share, and then the branches after them.
  void Trunk(std::span<const Row> rows, size_t common, Stretch stretch, int32_t depth) {
    const size_t end = CommonChunks(rows.front(), rows.back(), common);
    for (; common < end; ++common) {
      stretch.Add(static_cast<int64_t>(registry_.Get(rows[0].chunks[common]).tokens.size()),
                  split_);
    }
    const int64_t rest = always_ ? 0 : stretch.tail % kChunkDecodeTileTokens;
    const auto members = static_cast<int32_t>(rows.size());
    const int64_t tiles = stretch.tiles + DivideUp(stretch.tail - rest, kChunkDecodeTileTokens);
    if (tiles > 0 && (always_ || SharingPays(members, tiles, group_))) {
      Keep(rows, stretch.end - rest - stretch.begin);
      stretch = {.begin = stretch.end - rest, .end = stretch.end, .tiles = 0, .tail = rest};
      if (++depth == kMaxSharedRuns) return;
    }
    Branches(rows, common, stretch, depth);
  }

  void Keep(std::span<const Row> rows, int64_t tokens) {
    SharedRun& run = found_.emplace_back();
    run.tokens = tokens;
    for (const Row& row : rows) run.members.push_back({.seq = static_cast<int32_t>(row.row)});
    std::ranges::sort(run.members, {}, &SharedRun::Member::seq);
  }

  const ChunkRegistry& registry_;
  PageSplit split_;
  int32_t group_;
  bool always_;
  std::vector<SharedRun>& found_;
};

}  // namespace

std::vector<SharedRun> SharedRunsOfChains(std::span<const std::span<const ChunkId>> chains,
                                          const ChunkRegistry& registry, const PageSplit& split,
                                          int32_t group, ChunkSharing sharing) {
  std::vector<SharedRun> found;
  if (sharing == ChunkSharing::kNever) return found;
  std::vector<Row> rows;
  for (size_t row = 0; row < chains.size(); ++row) {
    // A row that shares anything shares its first chunk.
    if (!chains[row].empty() && registry.Users(chains[row][0]) > 1) {
      rows.push_back({.chunks = chains[row], .row = row});
    }
  }
  if (rows.size() < 2) return found;
  std::ranges::sort(rows, Before);
  Search(registry, split, group, sharing == ChunkSharing::kAlways, found).Branches(rows, 0, {}, 0);
  // The sort is stable because runs with the same first member were found in the order in which
  // they begin.
  std::ranges::stable_sort(found, {}, [](const SharedRun& run) { return run.members.front().seq; });
  return found;
}

SharedTableWriter::SharedTableWriter(TableWriter& table, std::span<SharedRun> runs,
                                     const PageSplit& split)
    : table_(table), runs_(runs), split_(split) {
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].chunks.clear();
    const auto last = static_cast<size_t>(runs[i].members.back().seq);
    if (last >= runs_of_rows_.size()) runs_of_rows_.resize(last + 1);
    for (const SharedRun::Member& member : runs[i].members) {
      runs_of_rows_[static_cast<size_t>(member.seq)].push_back(i);
    }
  }
}

void SharedTableWriter::Add(size_t row, const SequencePages& pages, int64_t length) {
  std::span<const size_t> left;  // the row's runs that have not begun
  if (row < runs_of_rows_.size()) left = runs_of_rows_[row];
  SharedRun* run = nullptr;  // the run that contains token `at`; null after the last run
  bool is_first = false;     // whether the row is the first member of the run
  int64_t at = 0, end = 0;   // `end` is where the run ends, or the row after the last run
  const auto enter = [&] {
    run = left.empty() ? nullptr : &runs_[left[0]];
    end = run == nullptr ? length : at + run->tokens;
    if (run == nullptr) return;
    left = left.subspan(1);
    is_first = run->chunks.empty();
    for (const int32_t chunk : run->chunks) table_.ListChunk(chunk);
  };
  enter();
  pages.ForEachRun(length, [&](std::span<const int32_t> run_pages, int64_t tokens) {
    for (int64_t done = 0; done < tokens;) {
      const int64_t count = std::min(tokens - done, end - at);
      if (run == nullptr || is_first) {
        const auto part = run_pages.subspan(static_cast<size_t>(split_.PageOf(done)),
                                            static_cast<size_t>(split_.PagesFor(count)));
        const int32_t chunk = table_.AddChunk(part, static_cast<int32_t>(count));
        if (run != nullptr) run->chunks.push_back(chunk);
      }
      done += count;
      at += count;
      if (at == end) enter();
    }
  });
  table_.EndSequence(1);
}

}  // namespace tokline
