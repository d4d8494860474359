// Deals segments to lanes, either whole, in parts or cut into equal shares: whichever ends first by
// the model of a block's time.
#include "kernels/chunk_decode/chunk_decode_shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

using Segment = ChunkDecodeSegment;
using Piece = ChunkDecodePiece;
using Shares = ChunkDecodeShares;

// A segment of up to this many tiles is faster in one block than in one block per tile.
constexpr int32_t kWholeTiles = 4;
// The time of a wide tile in units of a narrow one: see ChunkDecodeTimes.
constexpr int32_t kWideWeight = 3;
// The number of part sizes to try, starting with a lane's share. Each exceeds the previous one by
// at least an eighth of the share. Last comes the smallest size above the share that gives fewer
// parts, if it lies within that eighth. The search stops early when the last lane ends at most 3 %
// later than all lanes would if they ended together. Trying all other sizes would gain 0.1 % by the
// model, in the geometric mean of 40,000 drawn batches.
constexpr int32_t kPartSizes = 4;
constexpr double kEvenEnough = 1.03;
// By how much of its time, and at most how much, a deal of more pieces must end sooner. With a
// piece less, 1 x 131,072 tokens take 126 instead of 128 us, where the model expects 0.9 us more.
constexpr double kFewerPieces = 0.01, kFewerPiecesUs = 1.2;

int32_t WeightOf(const Segment& segment) { return segment.wide ? kWideWeight : 1; }

// The number of lanes with which segments of equal length come out even, with a whole number of
// lanes per segment or of segments per lane, so that the fewest states are merged. All lanes if
// this would leave more than one in 16 idle.
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

// Lays segments end to end and cuts them into equal shares of their time. Segments of up to
// kWholeTiles tiles are not cut if there is a lane for every tile.
Shares CutShares(std::span<const Segment> segments, int32_t first, int32_t num_lanes) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += int64_t{segment.tiles} * WeightOf(segment);
  const int32_t lanes = EvenLanes(segments, num_lanes);
  const bool keep_whole = total <= lanes;
  Shares shares;
  shares.reserve(segments.size() + static_cast<size_t>(lanes));
  int64_t at = 0;  // dealt out so far
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

constexpr int64_t Nanoseconds(double us) { return static_cast<int64_t>(us * 1000 + 0.5); }

// Returns the time at which each lane has read its pieces of shared segments.
std::vector<int64_t> LaneLoads(std::span<const Piece> shared, std::span<const Segment> segments,
                               int32_t num_lanes, int32_t group) {
  std::vector<int64_t> loads(static_cast<size_t>(num_lanes), 0);
  for (const Piece& piece : shared) {
    if (piece.lane >= num_lanes) continue;  // a run lane
    const bool wide = segments[static_cast<size_t>(piece.segment)].wide;
    loads[static_cast<size_t>(piece.lane)] +=
        Nanoseconds(TaskUs(group) + kChunkDecodeTimes.state_us) +
        piece.tiles *
            Nanoseconds(wide ? kChunkDecodeTimes.wide_tile_us : kChunkDecodeTimes.memory_tile_us);
  }
  return loads;
}

// Deals segments to the lanes that would end first.
class LaneDealer {
 public:
  // `loads` holds the time at which each lane finishes what it has already, in nanoseconds.
  LaneDealer(std::span<const Segment> segments, int32_t first, std::vector<int64_t> loads,
             int32_t group)
      : segments_(segments),
        first_(first),
        loads_(std::move(loads)),
        task_ns_(Nanoseconds(TaskUs(group))),
        order_(segments.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, std::ranges::greater{},
                             [this](int32_t s) { return TilesOf(s); });
  }

  // Deals the longest segment first. Segments of more than `size` and more than kWholeTiles tiles
  // are dealt in the fewest equal parts of at most `size` tiles.
  Shares Deal(int32_t size) const {
    const auto num_lanes = static_cast<int32_t>(loads_.size());
    int32_t num_parts = 0;
    for (const int32_t s : order_) num_parts += PartsOf(s, size);
    // The time at which each lane ends, with the lane's number in the lowest bits: the lane that
    // ends first is on top.
    constexpr int kLaneBits = 20;
    std::vector<int64_t> ends;
    for (int32_t lane = 0; lane < num_lanes; ++lane) {
      ends.push_back(loads_[static_cast<size_t>(lane)] << kLaneBits | lane);
    }
    std::ranges::make_heap(ends, std::greater{});
    Shares shares;
    shares.reserve(static_cast<size_t>(num_parts));
    for (const int32_t s : order_) {
      const int32_t parts = PartsOf(s, size);
      int32_t begin = 0, left = TilesOf(s);
      for (int32_t part = 0; part < parts; ++part) {
        const int32_t count = left / (parts - part);
        std::ranges::pop_heap(ends, std::greater{});
        int64_t& end = ends.back();
        const auto lane = static_cast<int32_t>(end & ((1 << kLaneBits) - 1));
        shares.push_back({lane, first_ + s, begin, count});
        end += (task_ns_ + (parts > 1 ? kStateNs : 0) + count * kTileNs) << kLaneBits;
        std::ranges::push_heap(ends, std::greater{});
        begin += count;
        left -= count;
      }
    }
    return shares;
  }

  // The smallest size that yields fewer parts than this one.
  int32_t NextSize(int32_t size) const {
    int32_t next = std::numeric_limits<int32_t>::max();
    for (const int32_t s : order_) {
      const int32_t parts = PartsOf(s, size);
      if (parts == 1) break;  // all shorter ones have a single part, too
      next = std::min(next, (TilesOf(s) - 1) / (parts - 1) + 1);
    }
    return next;
  }

 private:
  int32_t PartsOf(int32_t s, int32_t size) const {
    const int32_t tiles = TilesOf(s);
    return tiles <= std::max(size, kWholeTiles) ? 1 : (tiles - 1) / size + 1;
  }
  int32_t TilesOf(int32_t s) const { return segments_[static_cast<size_t>(s)].tiles; }

  static constexpr int64_t kStateNs = Nanoseconds(kChunkDecodeTimes.state_us);
  static constexpr int64_t kTileNs = Nanoseconds(kChunkDecodeTimes.memory_tile_us);
  std::span<const Segment> segments_;
  int32_t first_;  // the number of the first segment
  std::vector<int64_t> loads_;
  int64_t task_ns_;
  std::vector<int32_t> order_;  // the longest segment first
};

// Numbers the lanes, but for run lanes, so that SMs have about equally much to read. Returns the
// number of each.
std::vector<int32_t> NumberLanes(Shares& shares, std::span<const Segment> segments,
                                 const ChunkDecodeGrid& grid, const ChunkDecodeSms& sms) {
  std::vector<int64_t> loads(static_cast<size_t>(grid.num_lanes), 0);
  for (const Piece& piece : shares) {
    if (piece.lane >= grid.num_lanes) continue;  // a run lane
    loads[static_cast<size_t>(piece.lane)] +=
        int64_t{piece.tiles} * WeightOf(segments[static_cast<size_t>(piece.segment)]);
  }
  std::vector<int32_t> numbers = EvenLaneNumbers(loads, sms);
  for (Piece& piece : shares) {
    if (piece.lane < grid.num_lanes) piece.lane = numbers[static_cast<size_t>(piece.lane)];
  }
  return numbers;
}

// Keeps the time at which each lane ends, and gives each task to the lane that would end first.
class LaneEnds {
 public:
  explicit LaneEnds(std::span<const double> ends_us) {
    for (const double us : ends_us) ends_.emplace_back(us, static_cast<int32_t>(ends_.size()));
    std::ranges::make_heap(ends_, std::greater{});
  }
  // Gives a task that takes `task_us` to the lane that ends first, to the lowest-numbered one of
  // several. Returns the lane.
  int32_t Take(double task_us) {
    std::ranges::pop_heap(ends_, std::greater{});
    const int32_t lane = ends_.back().second;
    ends_.back().first += task_us;
    std::ranges::push_heap(ends_, std::greater{});
    return lane;
  }
  std::vector<double> ByLane() const {
    std::vector<double> ends_us(ends_.size());
    for (const auto& [us, lane] : ends_) ends_us[static_cast<size_t>(lane)] = us;
    return ends_us;
  }

 private:
  std::vector<std::pair<double, int32_t>> ends_;  // a heap: the lane that ends first is on top
};

}  // namespace

int32_t ChunkDecodeSegment::TilesOf(int32_t tokens) const {
  const int32_t tiles = (tokens - 1) / kChunkDecodeTileTokens + 1;  // `tokens` may be INT32_MAX
  return by_run_lanes ? static_cast<int32_t>(RoundUp(tiles, kChunkDecodeRunTiles)) : tiles;
}

Shares DealToRunLanes(std::span<const Segment> segments, const ChunkDecodeGrid& grid) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += segment.tiles;
  Shares pieces;
  for (int32_t s = 0; s < static_cast<int32_t>(segments.size()); ++s) {
    const int64_t tiles = segments[static_cast<size_t>(s)].tiles;  // at least one run-lane tile
    const int64_t units = tiles / kChunkDecodeRunTiles;
    const int64_t count = std::clamp<int64_t>(grid.run_lanes * tiles / total, 1, units);
    for (int64_t i = 0; i < count; ++i) {
      const auto begin = static_cast<int32_t>(i * units / count * kChunkDecodeRunTiles);
      const auto end = static_cast<int32_t>((i + 1) * units / count * kChunkDecodeRunTiles);
      pieces.push_back({0, s, begin, end - begin});
    }
  }
  std::ranges::stable_sort(pieces, std::ranges::greater{}, &Piece::tiles);
  LaneEnds ends(std::vector<double>(static_cast<size_t>(grid.run_lanes)));
  for (Piece& piece : pieces) {
    piece.lane = grid.num_lanes + ends.Take(RunTaskUs(piece.tiles));
  }
  std::ranges::stable_sort(pieces, {}, &Piece::lane);
  return pieces;
}

ChunkDecodeDeal DealSegments(std::span<const Segment> segments, int32_t num_seqs,
                             const ChunkDecodeGrid& grid, int32_t group,
                             const ChunkDecodeSms& sms) {
  const auto others_begin = std::ranges::find(segments, false, &Segment::by_run_lanes);
  const auto own_begin = std::ranges::find(segments, false, &Segment::shared);
  const auto num_by_run_lanes = static_cast<int32_t>(others_begin - segments.begin());
  const auto first = static_cast<int32_t>(own_begin - segments.begin());
  const std::span<const Segment> own(own_begin, segments.end());
  Shares shared = CutShares({others_begin, own_begin}, num_by_run_lanes, grid.num_lanes);
  const Shares of_runs = DealToRunLanes({segments.begin(), others_begin}, grid);
  shared.insert(shared.end(), of_runs.begin(), of_runs.end());
  ChunkDecodeDeal best;
  double best_us = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Shares& of_own) {
    Shares shares = shared;
    shares.insert(shares.end(), of_own.begin(), of_own.end());
    const double us = std::ranges::max(LaneEndsUs(shares, segments, num_seqs, grid, group));
    const double margin_us = std::min(kFewerPieces * us, kFewerPiecesUs);
    const auto pieces = std::ssize(shares), fewest = std::ssize(best.shares);
    if (us >= best_us + (pieces < fewest ? margin_us : pieces > fewest ? -margin_us : 0)) return;
    best_us = us;
    best.shares = std::move(shares);
  };
  consider(CutShares(own, first, grid.num_lanes));
  int64_t total = 0;
  int32_t longest = 0;
  for (const Segment& segment : own) {
    total += segment.tiles;
    longest = std::max(longest, segment.tiles);
  }
  // Fewer lanes leave fewer states to add.
  for (int32_t lanes = FewerLanes(grid.num_lanes);
       shared.empty() && lanes > std::ssize(own) &&
       static_cast<double>(total) / lanes * kChunkDecodeTimes.alone_tile_us < best_us;
       lanes = FewerLanes(lanes)) {
    consider(CutShares(own, first, lanes));
  }
  const LaneDealer dealer(own, first, LaneLoads(shared, segments, grid.num_lanes, group), group);
  const double even_us = kEvenEnough *
                         (static_cast<double>(total) * kChunkDecodeTimes.memory_tile_us +
                          static_cast<double>(own.size()) * TaskUs(group)) /
                         grid.num_lanes;
  // Parts of the size of a lane's share need fewer cuts than there are lanes.
  const auto share = static_cast<int32_t>(DivideUp(total, grid.num_lanes));
  const int32_t step = std::max(1, share / 8);
  for (int32_t i = 0, size = share; i < kPartSizes && size < longest && best_us > even_us; ++i) {
    consider(dealer.Deal(size));
    size = std::max(size + step, dealer.NextSize(size));
  }
  // Parts that are just larger than a share may leave one lane idle; larger parts leave more lanes
  // idle.
  if (best_us > even_us) {
    const int32_t next = dealer.NextSize(share);
    if (next < std::min(share + step, longest)) consider(dealer.Deal(next));
  }
  if (longest * kChunkDecodeTimes.alone_tile_us < best_us) consider(dealer.Deal(longest));
  NumberLanes(best.shares, segments, grid, sms);
  best.lane_ends_us = LaneEndsUs(best.shares, segments, num_seqs, grid, group);
  std::ranges::stable_sort(best.shares, {}, &Piece::lane);
  return best;
}

ChunkDecodeDeal DealToWarps(std::span<const Segment> segments, const ChunkDecodeGrid& grid,
                            int32_t group, const ChunkDecodeSms& sms) {
  const auto own_begin = std::ranges::find(segments, false, &Segment::by_run_lanes);
  const auto first = static_cast<int32_t>(own_begin - segments.begin());
  int32_t longest = 0;
  int64_t total = 0;
  for (const Segment& segment : segments.subspan(static_cast<size_t>(first))) {
    longest = std::max(longest, segment.tiles);
    total += segment.tiles;
  }
  const auto num_own = static_cast<int32_t>(std::ssize(segments)) - first;
  const int32_t part_tiles = grid.takes_parts && longest > 0
                                 ? WarpPartTiles(longest, total, num_own, grid, group)
                                 : longest;
  ChunkDecodeDeal deal;
  for (int32_t s = first; s < static_cast<int32_t>(segments.size()); ++s) {
    const int64_t tiles = segments[static_cast<size_t>(s)].tiles;
    const int64_t parts = DivideUp(tiles, int64_t{part_tiles});
    for (int64_t i = 0; i < parts; ++i) {
      const auto begin = static_cast<int32_t>(i * tiles / parts);
      deal.shares.push_back({0, s, begin, static_cast<int32_t>((i + 1) * tiles / parts) - begin});
    }
  }
  std::ranges::stable_sort(deal.shares, std::ranges::greater{}, &Piece::tiles);
  LaneEnds ends(std::vector<double>(static_cast<size_t>(grid.num_lanes)));
  for (Piece& piece : deal.shares) {
    const bool whole = piece.tiles == segments[static_cast<size_t>(piece.segment)].tiles;
    piece.lane =
        ends.Take(kChunkDecodeTimes.warp_task_us + piece.tiles * kChunkDecodeTimes.warp_tile_us +
                  (whole ? 0 : kChunkDecodeTimes.warp_part_us));
  }
  const std::vector<double> ends_us = ends.ByLane();
  deal.lane_ends_us.resize(ends_us.size());
  const std::vector<int32_t> numbers = NumberLanes(deal.shares, segments, grid, sms);
  for (size_t lane = 0; lane < ends_us.size(); ++lane) {
    deal.lane_ends_us[static_cast<size_t>(numbers[lane])] = ends_us[lane];
  }
  const Shares of_runs = DealToRunLanes({segments.begin(), own_begin}, grid);
  deal.shares.insert(deal.shares.end(), of_runs.begin(), of_runs.end());
  std::ranges::stable_sort(deal.shares, {}, &Piece::lane);
  return deal;
}

std::vector<int32_t> LanesOfEmptyTasks(std::span<const double> lane_ends_us, int64_t count,
                                       double task_us) {
  LaneEnds ends(lane_ends_us);
  std::vector<int32_t> lanes;
  for (int64_t i = 0; i < count; ++i) lanes.push_back(ends.Take(task_us));
  std::ranges::sort(lanes);
  return lanes;
}

Shares DealToClusters(std::span<const Segment> segments, const ChunkDecodeGrid& grid) {
  const int64_t cluster_lanes = grid.cluster_lanes;
  // The clusters of a segment none of whose lanes has more than `most` tiles.
  const auto clusters_of = [&](const Segment& segment, int32_t most) {
    return std::max<int64_t>(1, DivideUp(segment.tiles, most * cluster_lanes));
  };
  const auto clusters_of_all = [&](int32_t most) {
    int64_t clusters = 0;
    for (const Segment& segment : segments) clusters += clusters_of(segment, most);
    return clusters;
  };
  int32_t most = std::numeric_limits<int32_t>::max();
  if (grid.takes_parts) {
    // Each further wave costs about as much as this many tiles, besides its own.
    constexpr double kWaveTiles = 2;
    const double tiles =
        std::accumulate(segments.begin(), segments.end(), 0.0,
                        [](double sum, const Segment& segment) { return sum + segment.tiles; });
    double least = std::numeric_limits<double>::infinity();
    for (int32_t waves = 1; waves <= grid.waves; ++waves) {
      const int64_t clusters = grid.LanesAtOnce() / cluster_lanes * waves;
      int32_t fits = std::numeric_limits<int32_t>::max(), too_few = 0;
      if (clusters_of_all(fits) > clusters) continue;
      while (fits - too_few > 1) {
        const int32_t middle = too_few + (fits - too_few) / 2;
        (clusters_of_all(middle) <= clusters ? fits : too_few) = middle;
      }
      const auto used = static_cast<double>(clusters_of_all(fits) * cluster_lanes);
      const double in_turn = fits + (waves - 1) * (kWaveTiles + tiles / used);
      if (in_turn < least) {
        least = in_turn;
        most = fits;
      }
    }
  }
  // Clusters of later waves begin when one of the first has ended, so the longest come first.
  std::vector<int32_t> order(segments.size());
  std::iota(order.begin(), order.end(), 0);
  if (grid.waves > 1) {
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](int32_t s) {
      const Segment& segment = segments[static_cast<size_t>(s)];
      return static_cast<double>(segment.tiles) / static_cast<double>(clusters_of(segment, most));
    });
  }
  Shares shares;
  int32_t lane = 0;
  for (const int32_t s : order) {
    const Segment& segment = segments[static_cast<size_t>(s)];
    const int64_t tiles = segment.tiles;
    const int64_t lanes = clusters_of(segment, most) * cluster_lanes;
    for (int64_t i = 0; i < lanes; ++i) {
      const auto begin = static_cast<int32_t>(i * tiles / lanes);
      const auto end = static_cast<int32_t>((i + 1) * tiles / lanes);
      shares.push_back({lane++, s, begin, end - begin});
    }
  }
  return shares;
}

}  // namespace tokline
