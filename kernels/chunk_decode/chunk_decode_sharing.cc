// Finds shared runs, and decides by the model of a block's time whether a step reads them once.
#include "kernels/chunk_decode/chunk_decode_sharing.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_segments.h"
#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr int32_t kMaxNarrowParts = 3;

// The time of a tile of a run, summed over all parts.
double TileUs(int32_t members, int32_t group) {
  double us = 0;
  for (bool first = true; members > 0; first = false) {
    const int32_t part = SharedPartMembers(members, group);
    us += part * group > kChunkDecodeNarrowRows ? kChunkDecodeTimes.wide_tile_us
          : first                               ? kChunkDecodeTimes.memory_tile_us
                                                : kChunkDecodeTimes.cached_tile_us;
    members -= part;
  }
  return us;
}

// What lanes other than run lanes read of a plan's sequences.
ChunkDecodeLoad OtherLoadOf(const ChunkDecodePlan& plan) {
  std::vector<int64_t> lengths(static_cast<size_t>(plan.size.num_seqs), 0);
  const auto others = plan.LaneTaskIndptr()[static_cast<size_t>(plan.size.grid.num_lanes)];
  for (const ChunkDecodeTask& task : plan.Tasks().first(static_cast<size_t>(others))) {
    for (int32_t r = task.range_begin; r < task.range_end; ++r) {
      const ChunkDecodeRange& range = plan.Ranges()[static_cast<size_t>(r)];
      lengths[static_cast<size_t>(task.first_member.seq)] += range.token_end - range.token_begin;
    }
  }
  return LoadOf(lengths);
}

// When the last lane of a plan ends if a tile of at most 16 query rows takes `tile_us`.
double PlanUs(const ChunkDecodePlan& plan, const PagedKvLayout& layout, int32_t group,
              const DeviceFacts& device, double tile_us) {
  const ChunkDecodeGrid& grid = plan.size.grid;
  if (!grid.ReadsWhole()) return RunLanesUs(plan) + EstimateUs(plan, group, tile_us);
  const auto num_seqs = static_cast<int32_t>(plan.size.num_seqs);
  const int64_t states = grid.run_lanes > 0 ? plan.num_partials / num_seqs : 0;
  return RunLanesUs(plan) + RunStatesUs(states, num_seqs, grid, group) +
         GridUs(OtherLoadOf(plan), grid, ChunkDecodeFullGrid(layout, device), layout.head_dim,
                group, tile_us);
}

// The time of a tile if each sequence reads by itself: it finds in the L2 what others have read.
double AloneTileUs(const ChunkTableView& table, std::span<const SharedRun> runs) {
  const auto tiles_of = [&](int32_t chunk) {
    return DivideUp(table.chunk_lengths[chunk], kChunkDecodeTileTokens);
  };
  int64_t tiles = 0, cached_tiles = 0;
  for (int32_t i = 0; i < table.seq_chunk_indptr[table.num_seqs]; ++i) {
    tiles += tiles_of(table.seq_chunks[i]);
  }
  for (const SharedRun& run : runs) {
    for (const int32_t chunk : run.chunks) {
      cached_tiles += (std::ssize(run.members) - 1) * tiles_of(chunk);
    }
  }
  return SharedTileUs(static_cast<double>(cached_tiles), static_cast<double>(tiles));
}

}  // namespace

int32_t SharedPartMembers(int32_t members, int32_t group) {
  const int32_t narrow = kChunkDecodeNarrowRows / group;
  const bool few = members <= kMaxNarrowParts * narrow;
  return std::min(members, few ? narrow : kChunkDecodeMaxRows / group);
}

int32_t RunPartMembers(int32_t members, int32_t group) {
  return std::min(members, kChunkDecodeRunRows / group);
}

int32_t NumSharedParts(int32_t members, int32_t group) {
  int32_t parts = 0;
  for (; members > 0; members -= SharedPartMembers(members, group)) ++parts;
  return parts;
}

bool SharingPays(int32_t members, int64_t tiles, int32_t group) {
  const double alone_us =
      kChunkDecodeTimes.memory_tile_us + (members - 1) * kChunkDecodeTimes.cached_tile_us;
  const double saved_us = static_cast<double>(tiles) * (alone_us - TileUs(members, group));
  const double merged_us =
      kChunkDecodeTimes.state_us + kChunkDecodeTimes.merge_us + AddStatesUs(2, group);
  return saved_us > members * merged_us + NumSharedParts(members, group) * TaskUs(group);
}

std::vector<SharedRun> SharedRunsOfTable(const ChunkTableView& table, int32_t group,
                                         ChunkSharing sharing) {
  if (sharing == ChunkSharing::kNever || table.num_seqs < 2) return {};
  const auto num_chunks = static_cast<size_t>(table.num_chunks);
  std::vector<int32_t> listed(num_chunks, 0);
  bool any = false;
  for (int32_t i = 0; i < table.seq_chunk_indptr[table.num_seqs]; ++i) {
    any |= ++listed[static_cast<size_t>(table.seq_chunks[i])] == 2;
  }
  if (!any) return {};
  // The members of each chunk that is in no run yet; empty for chunks that are listed once.
  std::vector<std::vector<SharedRun::Member>> members(num_chunks);
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      const auto chunk = static_cast<size_t>(table.seq_chunks[i]);
      if (listed[chunk] > 1) {
        members[chunk].push_back({.seq = s, .shift = table.seq_shifts ? table.seq_shifts[i] : 0});
      }
    }
  }
  std::vector<SharedRun> runs;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    const int32_t end = table.seq_chunk_indptr[s + 1];
    for (int32_t i = table.seq_chunk_indptr[s]; i < end;) {
      const auto first = static_cast<size_t>(table.seq_chunks[i]);
      if (members[first].empty()) {
        ++i;
        continue;
      }
      SharedRun run;
      run.members = std::exchange(members[first], {});
      int64_t tiles = 0;
      const auto add = [&](int32_t chunk) {
        run.chunks.push_back(chunk);
        run.tokens += table.chunk_lengths[chunk];
        tiles += DivideUp(table.chunk_lengths[chunk], kChunkDecodeTileTokens);
      };
      add(table.seq_chunks[i]);
      for (++i; i < end; ++i) {
        auto& others = members[static_cast<size_t>(table.seq_chunks[i])];
        if (others != run.members) break;
        others.clear();
        add(table.seq_chunks[i]);
      }
      const auto count = static_cast<int32_t>(run.members.size());
      if (tiles > 0 && (sharing == ChunkSharing::kAlways || SharingPays(count, tiles, group))) {
        runs.push_back(std::move(run));
      }
    }
  }
  return runs;
}

int32_t NumRunParts(int32_t members, int32_t group) {
  return DivideUp(members, kChunkDecodeRunRows / group);
}

bool RunLanesRead(const SharedRun& run, int32_t group) {
  return std::ssize(run.members) * group > kChunkDecodeNarrowRows &&
         std::ranges::all_of(run.members, [](const auto& member) { return member.shift == 0; });
}

int64_t SharedTokensSaved(std::span<const SharedRun> runs, int32_t group,
                          const ChunkDecodeGrid& grid) {
  int64_t tokens = 0;
  for (const SharedRun& run : runs) {
    const auto members = static_cast<int32_t>(run.members.size());
    const int32_t parts = grid.run_lanes > 0 && RunLanesRead(run, group)
                              ? NumRunParts(members, group)
                              : NumSharedParts(members, group);
    tokens += run.tokens * (members - parts);
  }
  return tokens;
}

ChunkDecodeChoice ChooseChunkDecodeSharing(const ChunkTableView& table,
                                           std::span<const SharedRun> runs,
                                           const PagedKvLayout& layout, int32_t num_q_heads,
                                           const DeviceFacts& device, ChunkSharing sharing,
                                           const ChunkDecodeGrid& grid) {
  const int32_t group = GroupOf(num_q_heads, layout);
  ChunkDecodeChoice once{.runs = runs, .grid = grid, .tokens_saved = 0}, each{.grid = grid};
  if (sharing == ChunkSharing::kNever) return each;
  if (device.sm_count > 0) {
    const ChunkDecodeGrid run_grid =
        ChooseChunkDecodeRunGrid(runs, SequenceLengths(table), layout, group, device, sharing);
    if (run_grid.run_lanes == 0 && grid.ReadsWhole()) return each;
    if (run_grid.run_lanes > 0 || grid.num_lanes == 0) once.grid = run_grid;
    // Warps read one segment of each sequence; blocks read the several that shifts leave.
    if (once.grid.ReadsWhole() && table.seq_shifts != nullptr &&
        !OneSegmentEach(ChunkDecodeSegments(table, group, runs, true).All())) {
      once.grid = ChunkDecodeRunGrids(layout, device)[0];
    }
  }
  once.tokens_saved = SharedTokensSaved(runs, group, once.grid);
  if (once.tokens_saved == 0) return each;
  if (sharing == ChunkSharing::kAlways || device.sm_count == 0) return once;
  const auto us_of = [&](const ChunkDecodeChoice& choice, double tile_us) {
    return PlanUs(PlanChunkDecode(table, layout, num_q_heads, device, choice), layout, group,
                  device, tile_us);
  };
  const double once_us = us_of(once, kChunkDecodeTimes.memory_tile_us);
  const double each_us = us_of(each, AloneTileUs(table, runs));
  return once_us + kChunkDecodeTimes.least_gain_us < each_us ? once : each;
}

}  // namespace tokline
