// Adds up the times of the tasks, tiles, partial states and merges of each lane.
#include "kernels/chunk_decode/chunk_decode_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/chunk_decode/chunk_decode_plan.h"
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
  size_t last_piece = 0;  // the piece that leaves its last state; of several, that of the first
                          // lane
  double last_us = -1;    // negative: run lanes alone leave states
  int32_t last_lane = 0;
};

// The time of a tile while only the fraction `reading` of the lanes reads, where a grid is chosen:
// the times of clusters and warps were fitted beside it.
double TileUs(double reading, double tile_us) {
  return WithMemoryUs(kChunkDecodeTimes.alone_tile_us, tile_us * reading);
}

// Sets the time of a tile of each lane.
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
    if (lane.tiles > read) {
      const double memory_us = tile_us * std::pow(reading / count, kChunkDecodeTimes.reading_power);
      us += (lane.tiles - read) * WithMemoryUs(kChunkDecodeTimes.alone_tile_us, memory_us);
    }
    if (lane.tiles > 0) lane.tile_us = us / lane.tiles;
    read = lane.tiles;
    --reading;
  }
}

}  // namespace

double WithMemoryUs(double alone_us, double memory_us) { return std::hypot(alone_us, memory_us); }

double TaskUs(int32_t group) {
  return kChunkDecodeTimes.task_us + ChunkDecodeRowsOfWarp(group) * kChunkDecodeTimes.task_row_us;
}

double RunTaskUs(int32_t tiles) {
  return kChunkDecodeTimes.run_task_us +
         DivideUp(tiles, kChunkDecodeRunTiles) * kChunkDecodeTimes.run_tile_us;
}

double AddStatesUs(int32_t states, int32_t group) {
  // This follows AddStates of merge_device.cuh at head_dim 128: a warp loads eight states of a row
  // at a time, or four of each of two rows. At head_dim 64 it loads twice as many.
  const int32_t rows = ChunkDecodeRowsOfWarp(group);
  const int32_t sharing = group >= 3 ? 1 : 4 / group;  // warps that share a row
  const int32_t loads =
      rows == 1 ? DivideUp(states, 8 * sharing) : DivideUp(rows, 2) * DivideUp(states, 4);
  return rows * kChunkDecodeTimes.merged_row_us +
         (loads - 1) *
             (rows == 1 ? kChunkDecodeTimes.merged_states_us : kChunkDecodeTimes.merged_rows_us);
}

double MergeUs(int32_t states, int32_t group, bool bundled) {
  const int32_t bundles = bundled ? ChunkDecodeBundlesOf(states, group) : 1;
  if (bundles == 1) return AddStatesUs(states, group);
  return AddStatesUs(DivideUp(states, bundles), group) + kChunkDecodeTimes.merge_us +
         AddStatesUs(bundles, group);
}

namespace {

// The number of tiles that a task reads.
int32_t TilesOf(const ChunkDecodePlan& plan, const ChunkDecodeTask& task) {
  int32_t tiles = 0;
  for (int32_t r = task.range_begin; r < task.range_end; ++r) {
    const ChunkDecodeRange& range = plan.Ranges()[static_cast<size_t>(r)];
    tiles += (range.token_end - range.token_begin - 1) / kChunkDecodeTileTokens + 1;
  }
  return tiles;
}

// The last tile of a sequence is half full on average.
int64_t TilesOf(int64_t tokens, int32_t num_seqs) {
  return tokens / kChunkDecodeTileTokens + (num_seqs + 1) / 2;
}

// How much longer the SMs with most blocks of clusters take than the mean. `share` is these blocks
// over those of the full grid, which has four on each SM. About ten of eleven SMs get clusters.
double UnevenBlocks(double share, int32_t head_dim) {
  const double of_sm = 4 * 1.1 * share;
  if (head_dim != 64 || of_sm <= 1) return 1;
  return 1 + kChunkDecodeTimes.cluster_uneven * (std::ceil(of_sm - 0.05) / of_sm - 1);
}

// ClustersUs of the first `waves` waves of a grid.
double WavesUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& clusters, int32_t waves,
               const ChunkDecodeGrid& full, int32_t head_dim, int32_t group, double tile_us) {
  const int64_t longest = DivideUp(load.longest, int64_t{kChunkDecodeTileTokens});
  const int64_t tiles = TilesOf(load.tokens, load.num_seqs);
  const int64_t lanes = clusters.cluster_lanes;
  const int64_t count = clusters.LanesAtOnce() / lanes * waves;
  int64_t of_block = DivideUp(longest, lanes), used = count * lanes;
  double parts_us = 0, reading = kChunkDecodeTimes.cluster_reading;
  if (clusters.takes_parts) {
    // Each sequence but one may leave almost a whole cluster without tiles, but equal ones share
    // all clusters equally.
    of_block = std::max<int64_t>(1, std::min(DivideUp(tiles, lanes * (count - load.num_seqs + 1)),
                                             DivideUp(longest, lanes * (count / load.num_seqs))));
    const int64_t parts = DivideUp(longest, lanes * of_block);
    used = lanes * std::min({count, DivideUp(tiles, lanes * of_block) + load.num_seqs - 1,
                             parts * load.num_seqs});
    if (parts > 1) {
      parts_us =
          kChunkDecodeTimes.state_us + kChunkDecodeTimes.merge_us +
          static_cast<double>((parts - 1) * DivideUp(group, lanes)) * kChunkDecodeTimes.part_row_us;
    }
    reading = kChunkDecodeTimes.parts_reading;
  }
  const double tile_alone_us =
      head_dim == 64 ? kChunkDecodeTimes.cluster_half_tile_us : kChunkDecodeTimes.cluster_tile_us;
  const double all = full.num_lanes;
  const double at_once = static_cast<double>(used) / waves, crowd = at_once / all;
  const double memory_us = static_cast<double>(tiles) / all * tile_us *
                           std::pow(all / at_once, reading) * UnevenBlocks(crowd, head_dim);
  const double cluster_us =
      kChunkDecodeTimes.cluster_us +
      (lanes > kChunkDecodeClusterLanes ? kChunkDecodeTimes.large_cluster_us : 0) +
      group * kChunkDecodeTimes.cluster_row_us;
  // The longest begin first, and the lanes of a later wave have as many tiles as the mean.
  const double in_turn = static_cast<double>(of_block) +
                         (waves - 1) * (kChunkDecodeTimes.wave_tiles +
                                        static_cast<double>(tiles) / static_cast<double>(used));
  return waves * cluster_us + parts_us +
         clusters.LanesAtOnce() / all * kChunkDecodeTimes.cluster_crowd_us +
         WithMemoryUs(in_turn * tile_alone_us, memory_us);
}

}  // namespace

double ClustersUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& clusters,
                  const ChunkDecodeGrid& full, int32_t head_dim, int32_t group, double tile_us) {
  double us = std::numeric_limits<double>::infinity();
  // Each sequence has a cluster at least.
  const int32_t fewest = DivideUp(load.num_seqs * clusters.cluster_lanes, clusters.LanesAtOnce());
  for (int32_t waves = std::max(1, fewest); waves <= clusters.waves; ++waves) {
    us = std::min(us, WavesUs(load, clusters, waves, full, head_dim, group, tile_us));
  }
  return us;
}

namespace {

// How often a warp passes over a partial state to add it, eight query rows at a time.
int32_t PassesOfState(int32_t group) { return group > 8 ? 2 : 1; }

// The time that a warp takes to add a partial state of another warp.
double WarpStateUs(int32_t group) { return PassesOfState(group) * kChunkDecodeTimes.warp_state_us; }

// The time at which the last part of a sequence ends.
double WarpPartsUs(int32_t tiles, int32_t part, int32_t group) {
  return part * kChunkDecodeTimes.warp_tile_us + kChunkDecodeTimes.warp_part_us +
         DivideUp(tiles, part) * WarpStateUs(group);
}

}  // namespace

double RunStatesUs(int64_t states, int32_t num_seqs, const ChunkDecodeGrid& warps, int32_t group) {
  return static_cast<double>(DivideUp(num_seqs, warps.num_lanes) * states) * PassesOfState(group) *
         kChunkDecodeTimes.run_state_us;
}

int32_t WarpPartTiles(int32_t longest, int64_t tiles, int32_t num_seqs,
                      const ChunkDecodeGrid& warps, int32_t group) {
  constexpr const ChunkDecodeTimes& kTimes = kChunkDecodeTimes;
  // One part plus one state per part take the least time together when both take equally long.
  const double balanced = std::sqrt(longest * WarpStateUs(group) / kTimes.warp_tile_us);
  const auto share = static_cast<int32_t>(DivideUp(tiles, int64_t{warps.num_lanes}));
  const double tasks_us = num_seqs * kTimes.warp_task_us / warps.num_lanes;
  const int32_t part = std::max(static_cast<int32_t>(std::ceil(balanced)),
                                share + static_cast<int32_t>(tasks_us / kTimes.warp_tile_us));
  return WarpPartsUs(longest, part, group) < longest * kTimes.warp_tile_us ? part : longest;
}

double WarpsUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& warps,
               const ChunkDecodeGrid& full, int32_t group, double tile_us) {
  const double count = load.num_seqs, lanes = warps.num_lanes;
  const double tasks = std::ceil(count / lanes);
  // A warp that reads only a part of a tile takes only the time of that part.
  const auto tokens = static_cast<double>(load.tokens);
  const double first = kChunkDecodeTimes.warp_task_tokens;
  const auto longest =
      static_cast<int32_t>(DivideUp(load.longest, int64_t{kChunkDecodeTileTokens}));
  const auto tiles_us = [](double of) {
    return of / kChunkDecodeTileTokens * kChunkDecodeTimes.warp_tile_us;
  };
  double longest_us = tiles_us(static_cast<double>(load.longest) - first);
  if (warps.takes_parts && longest > 0) {
    const int32_t part =
        WarpPartTiles(longest, TilesOf(load.tokens, load.num_seqs), load.num_seqs, warps, group);
    if (part < longest) longest_us = WarpPartsUs(longest, part, group);
  }
  const double alone_us = std::max({0.0, longest_us, tiles_us(tasks * (tokens / count - first))});
  // All warps together read from memory as fast as the blocks of the full grid.
  const double memory_us = tokens / kChunkDecodeTileTokens / full.num_lanes * tile_us;
  return kChunkDecodeTimes.warp_us + tasks * kChunkDecodeTimes.warp_task_us +
         WithMemoryUs(alone_us, memory_us);
}

double LanesUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& full, int32_t group,
               double tile_us) {
  const int64_t total = TilesOf(load.tokens - load.tokens_saved, load.num_seqs);
  const auto tiles_us = [&](int64_t tiles, int64_t lanes) {
    const double reading = static_cast<double>(lanes) / full.num_lanes;
    return static_cast<double>(tiles) * TileUs(reading, tile_us);
  };
  const bool bundled = ChunkDecodeBundles(full, load.num_seqs, group);
  const int64_t longest = DivideUp(load.longest, int64_t{kChunkDecodeTileTokens});
  const int64_t rounds = DivideUp(int64_t{load.num_seqs}, int64_t{full.num_lanes});
  const double of_lane =
      std::max(static_cast<double>(longest), static_cast<double>(rounds * total) / load.num_seqs);
  double best_us = static_cast<double>(rounds) * TaskUs(group) +
                   WithMemoryUs(of_lane * kChunkDecodeTimes.alone_tile_us,
                                static_cast<double>(total) / full.num_lanes * tile_us);
  // Parts of the longest sequences among whole ones, divided equally among the lanes.
  const double share = static_cast<double>(total) / full.num_lanes;
  if (const auto parts = static_cast<int32_t>(std::ceil(static_cast<double>(longest) / share));
      rounds > 1 && parts > 1) {
    best_us =
        std::min(best_us, static_cast<double>(load.num_seqs) / full.num_lanes * TaskUs(group) +
                              share * TileUs(1.0, tile_us) + kChunkDecodeTimes.state_us +
                              kChunkDecodeTimes.merge_us + MergeUs(parts, group, bundled));
  }
  for (int32_t lanes = full.num_lanes; lanes > load.num_seqs; lanes = FewerLanes(lanes)) {
    const int64_t used = std::min<int64_t>(lanes, total);
    const int64_t mean = DivideUp(used, int64_t{load.num_seqs});
    if (mean < 2) break;
    // Of equal shares, the longest sequence has more than the others.
    const auto states =
        static_cast<int32_t>(std::clamp(DivideUp(used * longest, total), mean, used));
    best_us = std::min(best_us, TaskUs(group) + kChunkDecodeTimes.state_us +
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
  for (const ChunkDecodePiece& piece : pieces) {
    const ChunkDecodeSegment& segment = segments[static_cast<size_t>(piece.segment)];
    if (!segment.wide && piece.lane < grid.num_lanes) {
      lanes[static_cast<size_t>(piece.lane)].tiles += piece.tiles;
    }
    for (const SharedRun::Member& member : segment.members) {
      ++sequences[static_cast<size_t>(member.seq)].states;
    }
  }
  SetTileUs(lanes, tile_us);
  for (size_t p = 0; p < pieces.size(); ++p) {
    const ChunkDecodePiece& piece = pieces[p];
    if (piece.lane >= grid.num_lanes) continue;
    const ChunkDecodeSegment& segment = segments[static_cast<size_t>(piece.segment)];
    LaneTime& lane = lanes[static_cast<size_t>(piece.lane)];
    lane.us += TaskUs(group) +
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
  // Several blocks add the bundles at the same time, and then the sums of the bundles are added.
  const bool bundled = ChunkDecodeBundles(grid, num_seqs, group);
  std::vector<bool> merges(pieces.size(), false);
  for (const SequenceTime& sequence : sequences) {
    if (sequence.states < 2 || sequence.last_us < 0) continue;
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

ChunkDecodeLoad LoadOf(std::span<const int64_t> lengths) {
  ChunkDecodeLoad load{.num_seqs = static_cast<int32_t>(lengths.size())};
  for (const int64_t length : lengths) {
    load.longest = std::max(load.longest, length);
    load.tokens += length;
  }
  return load;
}

double SharedTileUs(double cached, double all) {
  return kChunkDecodeTimes.memory_tile_us +
         (kChunkDecodeTimes.cached_tile_us - kChunkDecodeTimes.memory_tile_us) * cached / all;
}

double GridUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& grid, const ChunkDecodeGrid& full,
              int32_t head_dim, int32_t group, double tile_us) {
  if (grid.cluster_lanes > 1) return ClustersUs(load, grid, full, head_dim, group, tile_us);
  if (grid.block_lanes > 1) {
    const double us = WarpsUs(load, grid, full, group, tile_us);
    return grid.takes_parts ? us * kChunkDecodeTimes.warp_parts_margin : us;
  }
  return LanesUs(load, grid, group, tile_us);
}

double RunLanesUs(const ChunkDecodePlan& plan) {
  const ChunkDecodeGrid& grid = plan.size.grid;
  if (grid.run_lanes == 0) return 0;
  double last_us = 0;
  for (int32_t lane = grid.num_lanes; lane < grid.AllLanes(); ++lane) {
    double us = 0;
    const auto at = plan.LaneTaskIndptr().subspan(static_cast<size_t>(lane));
    for (int32_t t = at[0]; t < at[1]; ++t) {
      us += RunTaskUs(TilesOf(plan, plan.Tasks()[static_cast<size_t>(t)]));
    }
    last_us = std::max(last_us, us);
  }
  return kChunkDecodeTimes.run_us + last_us;
}

double EstimateUs(const ChunkDecodePlan& plan, int32_t group, double tile_us) {
  std::vector<SharedRun::Member> members;
  for (const ChunkDecodeMember& member : plan.Members()) {
    members.push_back({.seq = member.seq, .shift = member.shift});
  }
  std::vector<ChunkDecodeSegment> segments;
  std::vector<ChunkDecodePiece> pieces;
  for (int32_t lane = 0; lane < plan.size.grid.AllLanes(); ++lane) {
    const auto at = plan.LaneTaskIndptr().subspan(static_cast<size_t>(lane));
    for (int32_t t = at[0]; t < at[1]; ++t) {
      const ChunkDecodeTask& task = plan.Tasks()[static_cast<size_t>(t)];
      ChunkDecodeSegment segment{.wide = task.member_count * group > kChunkDecodeNarrowRows};
      segment.members = {members.data() + task.member_begin,
                         static_cast<size_t>(task.member_count)};
      segment.tiles = TilesOf(plan, task);
      pieces.push_back({lane, static_cast<int32_t>(segments.size()), 0, segment.tiles});
      segments.push_back(segment);
    }
  }
  return std::ranges::max(LaneEndsUs(pieces, segments, static_cast<int32_t>(plan.size.num_seqs),
                                     plan.size.grid, group, tile_us));
}

}  // namespace tokline
