// Deals segments to lanes, whole or cut, whichever ends earlier by the model of a block's time.
#include "kernels/chunk_decode/chunk_decode_shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

using Segment = ChunkDecodeSegment;
using Piece = ChunkDecodePiece;
using Shares = ChunkDecodeShares;

// A segment of up to this many tiles is faster in one block than in as many.
constexpr int32_t kWholeTiles = 4;
// What a wide tile takes, in narrow ones: see ChunkDecodeTimes.
constexpr int32_t kWideWeight = 3;

int32_t WeightOf(const Segment& segment) { return segment.wide ? kWideWeight : 1; }

// As many of the lanes as let segments of equal length come out even, with whole lanes per segment
// or whole segments per lane, so that the fewest states are merged. All lanes if this would leave
// more than one in 16 idle.
int32_t EvenLanes(std::span<const Segment> segments, int32_t lanes) {
  const auto count = static_cast<int32_t>(segments.size());
  const auto equal = [&](const Segment& s) {
    return s.tiles == segments[0].tiles && s.wide == segments[0].wide;
  };
  if (count < 2 || !std::ranges::all_of(segments, equal)) return lanes;
  for (int32_t even = lanes; even > lanes - lanes / 16; --even) {
    if (even % count == 0 || count % even == 0) return even;
  }
  return lanes;
}

// Segments end to end, cut into equal shares of their time. Those of up to kWholeTiles are not cut
// if there is a lane for every tile.
Shares CutShares(std::span<const Segment> segments, int32_t first, int32_t num_lanes) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += int64_t{segment.tiles} * WeightOf(segment);
  const int32_t lanes = EvenLanes(segments, num_lanes);
  const bool keep_whole = total <= lanes;
  Shares shares;
  shares.reserve(segments.size() + static_cast<size_t>(lanes));
  int64_t at = 0;  // given out
  int32_t lane = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const int32_t tiles = segments[s].tiles, weight = WeightOf(segments[s]);
    for (int32_t begin = 0; begin < tiles;) {
      while ((lane + 1) * total / lanes <= at) ++lane;
      const int64_t room = keep_whole && tiles <= kWholeTiles
                               ? tiles
                               : DivideUp((lane + 1) * total / lanes - at, weight);
      const auto count = static_cast<int32_t>(std::min<int64_t>(room, tiles - begin));
      shares.push_back({lane, first + static_cast<int32_t>(s), begin, count});
      begin += count;
      at += int64_t{count} * weight;
    }
  }
  return shares;
}

// Segments as they are, the longest first, each to the lane that would end first. Up to one lane
// in 16 stays idle, where that makes none longer. Lanes that are used lie apart where many are not.
Shares WholeShares(std::span<const Segment> segments, int32_t first, int32_t num_lanes) {
  if (segments.empty()) return {};
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
  Shares shares;
  for (const int32_t s : order) {
    const auto [us, lane] = loads.top();
    loads.pop();
    loads.emplace(us + kChunkDecodeTimes.task_us + tiles_of(s) * kChunkDecodeTimes.memory_tile_us,
                  lane);
    shares.push_back({lane, first + s, 0, tiles_of(s)});
  }
  return shares;
}

}  // namespace

Shares DealSegments(std::span<const Segment> segments, int32_t num_seqs,
                    const ChunkDecodeGrid& grid, int32_t group) {
  const auto own_begin = std::ranges::find(segments, false, &Segment::shared);
  const auto first = static_cast<int32_t>(own_begin - segments.begin());
  const std::span<const Segment> own(own_begin, segments.end());
  const Shares shared = CutShares(segments.first(static_cast<size_t>(first)), 0, grid.num_lanes);
  Shares best;
  double best_us = std::numeric_limits<double>::infinity();
  for (const Shares& of_own :
       {CutShares(own, first, grid.num_lanes), WholeShares(own, first, grid.num_lanes)}) {
    Shares shares = shared;
    shares.insert(shares.end(), of_own.begin(), of_own.end());
    const double us = SharesUs(shares, segments, num_seqs, grid, group);
    if (us >= best_us) continue;
    best_us = us;
    best = std::move(shares);
  }
  std::ranges::stable_sort(best, {}, &Piece::lane);
  return best;
}

Shares DealToClusters(std::span<const Segment> segments, const ChunkDecodeGrid& grid) {
  Shares shares;
  int32_t lane = 0;
  for (int32_t s = 0; s < static_cast<int32_t>(segments.size()); ++s) {
    const int64_t tiles = segments[static_cast<size_t>(s)].tiles;
    for (int64_t i = 0; i < grid.cluster_lanes; ++i) {
      const auto begin = static_cast<int32_t>(i * tiles / grid.cluster_lanes);
      const auto end = static_cast<int32_t>((i + 1) * tiles / grid.cluster_lanes);
      shares.push_back({lane++, s, begin, end - begin});
    }
  }
  return shares;
}

}  // namespace tokline
