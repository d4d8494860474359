// Adds up what the tasks, tiles, partial states and merges of each lane take.
#include "kernels/chunk_decode/chunk_decode_times.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "kernels/chunk_decode/chunk_decode_policy.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

struct LaneTime {
  int32_t tiles = 0;   // narrow ones
  double tile_us = 0;  // of each of them
  double us = 0;
};

struct SequenceTime {
  int32_t states = 0;
  size_t last_piece = 0;  // that leaves its last state; of several, that of the first lane
  double last_us = 0;
  int32_t last_lane = 0;
};

// While a part of the lanes reads, a tile takes that part of what it takes when all read, but not
// less than from the L2.
double TileUs(double reading, double tile_us) {
  return std::max(kChunkDecodeTimes.cached_tile_us, tile_us * reading);
}

// What a tile of each lane takes.
void SetTileUs(std::vector<LaneTime>& lanes, double tile_us) {
  std::vector<int32_t> order(lanes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto tiles_of = [&](int32_t lane) { return lanes[static_cast<size_t>(lane)].tiles; };
  std::ranges::sort(order, {}, tiles_of);
  const auto count = static_cast<double>(lanes.size());
  double us = 0, reading = count;
  int32_t read = 0;
  for (const int32_t i : order) {
    LaneTime& lane = lanes[static_cast<size_t>(i)];
    us += (lane.tiles - read) * TileUs(reading / count, tile_us);
    if (lane.tiles > 0) lane.tile_us = us / lane.tiles;
    read = lane.tiles;
    --reading;
  }
}

}  // namespace

double AddStatesUs(int32_t states, int32_t group) {
  // As AddStates of merge_device.cuh: a warp loads eight states of a row at a time, or four of each
  // of two rows.
  const int32_t rows = ChunkDecodeRowsOfWarp(group);
  const int32_t sharing = group >= 3 ? 1 : 4 / group;  // warps that share a row
  const int32_t loads =
      rows == 1 ? DivideUp(states, 8 * sharing) : DivideUp(rows, 2) * DivideUp(states, 4);
  return rows * kChunkDecodeTimes.merged_row_us + (loads - 1) * kChunkDecodeTimes.merged_states_us;
}

double MergeUs(int32_t states, int32_t group, bool bundled) {
  const int32_t bundles = bundled ? ChunkDecodeBundlesOf(states, group) : 1;
  if (bundles == 1) return AddStatesUs(states, group);
  return AddStatesUs(DivideUp(states, bundles), group) + kChunkDecodeTimes.merge_us +
         AddStatesUs(bundles, group);
}

double ClustersUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& clusters,
                  const PagedKvLayout& layout, int32_t group, const DeviceFacts& device) {
  const int64_t tiles = DivideUp(load.longest, int64_t{kChunkDecodeTileTokens});
  const auto of_block = static_cast<double>(DivideUp(tiles, int64_t{clusters.cluster_lanes}));
  // Blocks that share an SM end later than those that have one to themselves.
  const int64_t blocks = int64_t{clusters.num_lanes} * layout.num_kv_heads;
  const auto blocks_per_sm = static_cast<double>(DivideUp(blocks, int64_t{device.sm_count}));
  const double reading =
      blocks_per_sm / static_cast<double>(ChunkDecodeBlocksPerSm(layout.head_dim, device));
  const double alone_us = layout.head_dim == 64 ? kChunkDecodeTimes.cluster_half_tile_us
                                                : kChunkDecodeTimes.cluster_tile_us;
  return kChunkDecodeTimes.cluster_us + group * kChunkDecodeTimes.cluster_row_us +
         of_block * std::max(alone_us, reading * kChunkDecodeTimes.memory_tile_us);
}

double LanesUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& full, int32_t group) {
  // The last tile of a sequence is half full on average.
  const int64_t total = load.tokens / kChunkDecodeTileTokens + (load.num_seqs + 1) / 2;
  const auto tiles_us = [&](int64_t tiles, int64_t lanes) {
    const double reading = static_cast<double>(lanes) / full.num_lanes;
    return static_cast<double>(tiles) * TileUs(reading, kChunkDecodeTimes.memory_tile_us);
  };
  const bool bundled = ChunkDecodeBundles(full, load.num_seqs, group);
  const int64_t longest = DivideUp(load.longest, int64_t{kChunkDecodeTileTokens});
  const int64_t rounds = DivideUp(int64_t{load.num_seqs}, int64_t{full.num_lanes});
  double best_us = static_cast<double>(rounds) * kChunkDecodeTimes.task_us +
                   tiles_us(std::max(longest, DivideUp(total, int64_t{full.num_lanes})),
                            std::min<int64_t>(load.num_seqs, full.num_lanes));
  for (int32_t lanes = full.num_lanes; lanes > load.num_seqs; lanes = FewerLanes(lanes)) {
    const int64_t used = std::min<int64_t>(lanes, total);
    const auto states = static_cast<int32_t>(DivideUp(used, int64_t{load.num_seqs}));
    if (states < 2) break;
    best_us = std::min(best_us, kChunkDecodeTimes.task_us + kChunkDecodeTimes.state_us +
                                    kChunkDecodeTimes.merge_us + MergeUs(states, group, bundled) +
                                    tiles_us(DivideUp(total, used), used));
  }
  return best_us + (bundled ? kChunkDecodeTimes.bundles_us : 0);
}

std::vector<double> LaneEndsUs(std::span<const ChunkDecodePiece> pieces,
                               std::span<const ChunkDecodeSegment> segments, int32_t num_seqs,
                               const ChunkDecodeGrid& grid, int32_t group, double tile_us) {
  std::vector<LaneTime> lanes(static_cast<size_t>(grid.num_lanes));
  std::vector<SequenceTime> sequences(static_cast<size_t>(num_seqs));
  const bool has_states = grid.cluster_lanes == 1;
  for (const ChunkDecodePiece& piece : pieces) {
    const ChunkDecodeSegment& segment = segments[static_cast<size_t>(piece.segment)];
    if (!segment.wide) lanes[static_cast<size_t>(piece.lane)].tiles += piece.tiles;
    if (!has_states) continue;
    for (const SharedRun::Member& member : segment.members) {
      ++sequences[static_cast<size_t>(member.seq)].states;
    }
  }
  SetTileUs(lanes, tile_us);
  for (size_t p = 0; p < pieces.size(); ++p) {
    const ChunkDecodePiece& piece = pieces[p];
    const ChunkDecodeSegment& segment = segments[static_cast<size_t>(piece.segment)];
    LaneTime& lane = lanes[static_cast<size_t>(piece.lane)];
    lane.us += kChunkDecodeTimes.task_us +
               piece.tiles * (segment.wide ? kChunkDecodeTimes.wide_tile_us : lane.tile_us);
    bool leaves_state = false;
    for (const SharedRun::Member& member : segment.members) {
      leaves_state |= sequences[static_cast<size_t>(member.seq)].states > 1;
    }
    if (!leaves_state) continue;
    lane.us += kChunkDecodeTimes.state_us;
    for (const SharedRun::Member& member : segment.members) {
      SequenceTime& sequence = sequences[static_cast<size_t>(member.seq)];
      if (std::tuple(lane.us, -piece.lane) <= std::tuple(sequence.last_us, -sequence.last_lane)) {
        continue;
      }
      sequence.last_us = lane.us;
      sequence.last_lane = piece.lane;
      sequence.last_piece = p;
    }
  }
  // Bundles are added by several blocks at a time, and then their sums.
  const bool bundled = ChunkDecodeBundles(grid, num_seqs, group);
  std::vector<bool> merges(pieces.size(), false);
  for (const SequenceTime& sequence : sequences) {
    if (sequence.states < 2) continue;
    LaneTime& lane = lanes[static_cast<size_t>(pieces[sequence.last_piece].lane)];
    if (!merges[sequence.last_piece]) lane.us += kChunkDecodeTimes.merge_us;
    merges[sequence.last_piece] = true;
    lane.us += MergeUs(sequence.states, group, bundled);
  }
  std::vector<double> ends;
  ends.reserve(lanes.size());
  for (const LaneTime& lane : lanes) ends.push_back(lane.us);
  return ends;
}

double EstimateUs(const ChunkDecodePlan& plan, int32_t group, double tile_us) {
  std::vector<SharedRun::Member> members;
  for (const ChunkDecodeMember& member : plan.Members()) {
    members.push_back({.seq = member.seq, .shift = member.shift});
  }
  std::vector<ChunkDecodeSegment> segments;
  std::vector<ChunkDecodePiece> pieces;
  for (int32_t lane = 0; lane < plan.size.grid.num_lanes; ++lane) {
    const auto at = plan.LaneTaskIndptr().subspan(static_cast<size_t>(lane));
    for (int32_t t = at[0]; t < at[1]; ++t) {
      const ChunkDecodeTask& task = plan.Tasks()[static_cast<size_t>(t)];
      ChunkDecodeSegment segment{.wide = task.member_count * group > kChunkDecodeNarrowRows};
      segment.members = {members.data() + task.member_begin,
                         static_cast<size_t>(task.member_count)};
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.Ranges()[static_cast<size_t>(r)];
        segment.tiles += (range.token_end - range.token_begin - 1) / kChunkDecodeTileTokens + 1;
      }
      pieces.push_back({lane, static_cast<int32_t>(segments.size()), 0, segment.tiles});
      segments.push_back(segment);
    }
  }
  return std::ranges::max(LaneEndsUs(pieces, segments, static_cast<int32_t>(plan.size.num_seqs),
                                     plan.size.grid, group, tile_us));
}

}  // namespace tokline
