// Collects what each sequence reads, and cuts runs that many sequences read into parts that fit one
// block.
#include "kernels/chunk_decode/chunk_decode_segments.h"

#include <algorithm>
#include <utility>

#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_sharing.h"

namespace tokline {
namespace {

// The position shift of entry `listing` of the table's seq_chunks.
int32_t ShiftOf(const ChunkTableView& table, int32_t listing) {
  return table.seq_shifts ? table.seq_shifts[listing] : 0;
}

}  // namespace

ChunkDecodeSegments::ChunkDecodeSegments(const ChunkTableView& table, int32_t group,
                                         std::span<const SharedRun> runs, bool run_lanes) {
  if (table.num_seqs == 0) return;
  const auto listings = static_cast<size_t>(table.seq_chunk_indptr[table.num_seqs]);
  size_t num_ranges = listings;
  for (const SharedRun& run : runs) num_ranges += run.chunks.size();
  ranges_.reserve(num_ranges);
  members_.reserve(listings);
  segments_.reserve(static_cast<size_t>(table.num_seqs));
  const auto add_runs = [&](bool by_run_lanes) {
    for (const SharedRun& run : runs) {
      if ((run_lanes && RunLanesRead(run, group)) == by_run_lanes) {
        AddRun(table, run, group, by_run_lanes);
      }
    }
  };
  if (run_lanes) add_runs(true);
  add_runs(false);
  AddAlone(table, runs);
}

void ChunkDecodeSegments::AddChunk(const ChunkTableView& table, int32_t chunk,
                                   ChunkDecodeSegment& segment) {
  const int32_t length = table.chunk_lengths[chunk];
  if (length == 0) return;
  ranges_.push_back({table.chunk_page_indptr[chunk], 0, length});
  segment.ranges = {ranges_.data() + ranges_.size() - segment.ranges.size() - 1,
                    segment.ranges.size() + 1};
  segment.tiles += segment.TilesOf(length);
}

void ChunkDecodeSegments::AddRun(const ChunkTableView& table, const SharedRun& run, int32_t group,
                                 bool by_run_lanes) {
  ChunkDecodeSegment part{.shared = true, .by_run_lanes = by_run_lanes};
  for (const int32_t chunk : run.chunks) AddChunk(table, chunk, part);
  if (part.tiles == 0) return;
  for (std::span<const SharedRun::Member> left = run.members; !left.empty();) {
    const auto members = static_cast<int32_t>(left.size());
    const int32_t count =
        by_run_lanes ? RunPartMembers(members, group) : SharedPartMembers(members, group);
    part.members = left.first(static_cast<size_t>(count));
    part.wide = count * group > kChunkDecodeNarrowRows;
    segments_.push_back(part);
    left = left.subspan(part.members.size());
  }
}

void ChunkDecodeSegments::AddAlone(const ChunkTableView& table, std::span<const SharedRun> runs) {
  std::vector<bool> shared(runs.empty() ? 0 : static_cast<size_t>(table.num_chunks), false);
  for (const SharedRun& run : runs) {
    for (const int32_t chunk : run.chunks) shared[static_cast<size_t>(chunk)] = true;
  }
  const auto is_shared = [&](int32_t listing) {
    return !runs.empty() && shared[static_cast<size_t>(table.seq_chunks[listing])];
  };
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    const int32_t end = table.seq_chunk_indptr[s + 1];
    for (int32_t i = table.seq_chunk_indptr[s]; i < end;) {
      if (is_shared(i)) {
        ++i;
        continue;
      }
      ChunkDecodeSegment segment;  // everything between shared chunks is one segment
      const int32_t shift = ShiftOf(table, i);
      for (; i < end && (is_shared(i) || ShiftOf(table, i) == shift); ++i) {
        if (!is_shared(i)) AddChunk(table, table.seq_chunks[i], segment);
      }
      if (segment.tiles == 0) continue;
      members_.push_back({s, shift});
      segment.members = {&members_.back(), 1};
      segments_.push_back(segment);
    }
  }
}

bool OneSegmentEach(std::span<const ChunkDecodeSegment> segments) {
  int32_t last = -1;  // segments come in order of sequences
  return std::ranges::all_of(segments, [&last](const ChunkDecodeSegment& segment) {
    if (segment.by_run_lanes) return true;
    if (segment.shared || segment.members.size() != 1) return false;
    return std::exchange(last, segment.members[0].seq) < segment.members[0].seq;
  });
}

void AddRanges(const ChunkDecodeSegment& segment, const ChunkDecodePiece& piece,
               std::vector<ChunkDecodeRange>& ranges) {
  int32_t skip = piece.tile_begin, left = piece.tiles;
  if (left == 0) return;
  for (const ChunkDecodeRange& range : segment.ranges) {
    const int32_t tiles = segment.TilesOf(range.token_end);
    if (skip >= tiles) {
      skip -= tiles;
      continue;
    }
    const int32_t take = std::min(tiles - skip, left);
    const int64_t end = int64_t{skip + take} * kChunkDecodeTileTokens;
    ranges.push_back({range.page_begin, skip * kChunkDecodeTileTokens,
                      static_cast<int32_t>(std::min<int64_t>(range.token_end, end))});
    skip = 0;
    left -= take;
    if (left == 0) return;
  }
}

}  // namespace tokline
