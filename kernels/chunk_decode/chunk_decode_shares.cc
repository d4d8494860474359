// Deals segments to lanes, whole or cut, whichever ends earlier by the model of a block's time.
#include "kernels/chunk_decode/chunk_decode_shares.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "kernels/chunk_decode/chunk_decode_sharing.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

using Segment = ChunkDecodeSegment;
using Piece = ChunkDecodePiece;
using Shares = ChunkDecodeShares;

// A segment of up to this many tiles is faster in one block than in as many.
constexpr int32_t kWholeTiles = 4;

// As many of the lanes as let segments of equal length come out even, with whole lanes per segment
// or whole segments per lane, so that the fewest states are merged. All lanes if this would leave
// more than one in 16 idle.
int32_t EvenLanes(std::span<const Segment> segments, int32_t lanes) {
  const auto count = static_cast<int32_t>(segments.size());
  const auto equal = [&](const Segment& s) {
    return s.tiles == segments[0].tiles && s.weight == segments[0].weight;
  };
  if (count < 2 || !std::ranges::all_of(segments, equal)) return lanes;
  for (int32_t even = lanes; even > lanes - lanes / 16; --even) {
    if (even % count == 0 || count % even == 0) return even;
  }
  return lanes;
}

// Segments as they are, the longest first, each to the lane that would end first. Up to one lane
// in 16 stays idle, where that makes none longer. Lanes that are used lie apart where many are not.
Shares WholeShares(std::span<const Segment> segments, int32_t first, int32_t num_lanes) {
  const auto count = static_cast<int32_t>(segments.size());
  const auto enough = static_cast<int32_t>(DivideUp(count, DivideUp(count, num_lanes)));
  const int32_t used =
      count < num_lanes || enough > num_lanes - num_lanes / 16 ? enough : num_lanes;
  std::vector<int32_t> order(segments.size());
  std::iota(order.begin(), order.end(), 0);
  const auto tiles_of = [&](int32_t s) { return segments[static_cast<size_t>(s)].tiles; };
  std::ranges::stable_sort(order, std::ranges::greater{}, tiles_of);
  using Load = std::pair<double, int32_t>;  // when the lane ends, the lane
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int32_t i = 0; i < used; ++i) {
    loads.emplace(0, static_cast<int32_t>(int64_t{i} * num_lanes / used));
  }
  Shares shares(static_cast<size_t>(num_lanes));
  for (const int32_t s : order) {
    const auto [us, lane] = loads.top();
    loads.pop();
    loads.emplace(us + kChunkDecodeTimes.task_us + tiles_of(s) * kChunkDecodeTimes.memory_tile_us,
                  lane);
    shares[static_cast<size_t>(lane)].push_back({first + s, 0, tiles_of(s)});
  }
  return shares;
}

// Segments end to end, cut into equal shares of their time. Those of up to kWholeTiles are not cut
// if there is a lane for every tile.
Shares CutShares(std::span<const Segment> segments, int32_t first, int32_t num_lanes) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += int64_t{segment.tiles} * segment.weight;
  const int32_t lanes = EvenLanes(segments, num_lanes);
  const bool keep_whole = total <= lanes;
  Shares shares(static_cast<size_t>(num_lanes));
  int64_t at = 0;  // given out
  int32_t lane = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const auto [tiles, weight] = std::pair(segments[s].tiles, segments[s].weight);
    for (int32_t begin = 0; begin < tiles;) {
      while ((lane + 1) * total / lanes <= at) ++lane;
      const int64_t room = keep_whole && tiles <= kWholeTiles
                               ? tiles
                               : DivideUp((lane + 1) * total / lanes - at, weight);
      const auto count = static_cast<int32_t>(std::min<int64_t>(room, tiles - begin));
      shares[static_cast<size_t>(lane)].push_back({first + static_cast<int32_t>(s), begin, count});
      begin += count;
      at += int64_t{count} * weight;
    }
  }
  return shares;
}

// When the last lane ends, by the model. While a part of the lanes reads, a tile takes that part of
// what it takes when all read, but not less than from the L2.
double SharesUs(const Shares& shares, size_t num_segments, int32_t group) {
  std::vector<int32_t> lane_tiles;
  size_t most = 0, pieces = 0;
  for (const std::vector<Piece>& lane : shares) {
    lane_tiles.push_back(0);
    for (const Piece& piece : lane) lane_tiles.back() += piece.tiles;
    most = std::max(most, lane.size());
    pieces += lane.size();
  }
  std::ranges::sort(lane_tiles);
  double us = static_cast<double>(most) * kChunkDecodeTimes.task_us;
  if (pieces > num_segments)
    us += kChunkDecodeTimes.cut_us + group * kChunkDecodeTimes.merged_row_us;
  const auto lanes = static_cast<double>(lane_tiles.size());
  int32_t read = 0;
  for (size_t i = 0; i < lane_tiles.size(); ++i) {
    const auto reading = static_cast<double>(lane_tiles.size() - i);
    us += (lane_tiles[i] - std::exchange(read, lane_tiles[i])) *
          std::max(kChunkDecodeTimes.cached_tile_us,
                   kChunkDecodeTimes.memory_tile_us * reading / lanes);
  }
  return us;
}

// What the lanes read of the segments: whole ones if that is quicker by the model, otherwise equal
// shares. Segments that several sequences share are always cut.
Shares LaneShares(std::span<const Segment> segments, int32_t first, int32_t num_lanes,
                  int32_t group) {
  Shares cut = CutShares(segments, first, num_lanes);
  if (segments.empty() || segments[0].shared) return cut;
  Shares whole = WholeShares(segments, first, num_lanes);
  const size_t count = segments.size();
  return SharesUs(whole, count, group) < SharesUs(cut, count, group) ? whole : cut;
}

}  // namespace

Shares DealSegments(std::span<const Segment> segments, int32_t lanes, int32_t group) {
  const auto own = std::ranges::find(segments, false, &Segment::shared);
  const auto num_shared = static_cast<size_t>(own - segments.begin());
  Shares shares = LaneShares(segments.first(num_shared), 0, lanes, group);
  const Shares rest =
      LaneShares(segments.subspan(num_shared), static_cast<int32_t>(num_shared), lanes, group);
  for (size_t lane = 0; lane < shares.size(); ++lane) {
    shares[lane].insert(shares[lane].end(), rest[lane].begin(), rest[lane].end());
  }
  return shares;
}

Shares DealToClusters(std::span<const Segment> segments, const ChunkDecodeGrid& grid) {
  Shares shares(static_cast<size_t>(grid.num_lanes));
  size_t lane = 0;
  for (int32_t s = 0; s < static_cast<int32_t>(segments.size()); ++s) {
    const int64_t tiles = segments[static_cast<size_t>(s)].tiles;
    for (int64_t i = 0; i < grid.cluster_lanes; ++i) {
      const auto begin = static_cast<int32_t>(i * tiles / grid.cluster_lanes);
      const auto end = static_cast<int32_t>((i + 1) * tiles / grid.cluster_lanes);
      shares[lane++].push_back({s, begin, end - begin});
    }
  }
  return shares;
}

}  // namespace tokline
