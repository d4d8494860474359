// Plans a step of chunk_decode. A sequence's context becomes segments: runs of chunks that the
// same members read with the same shifts. Few segments get whole clusters of lanes each (a lane is
// one block per KV head), many or short ones lanes of a warp. Otherwise segments are dealt to lanes
// of a block, first those that sequences share, so that the last lane ends as early as the model of
// a block's time allows. Where a segment is cut, its members get further partial states.
#include "kernels/chunk_decode/chunk_decode_policy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>
#include <span>
#include <utility>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_shares.h"
#include "kernels/chunk_decode/chunk_decode_sharing.h"
#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr int64_t kAlignment = 256;

// Query heads per KV head.
int32_t GroupOf(int32_t num_q_heads, const PagedKvLayout& layout) {
  Require(num_q_heads > 0 && num_q_heads % layout.num_kv_heads == 0 &&
              num_q_heads / layout.num_kv_heads <= 16,
          "num_q_heads is ", num_q_heads, "; it must be 1 to 16 times num_kv_heads, which is ",
          layout.num_kv_heads);
  return num_q_heads / layout.num_kv_heads;
}

// The position shift of entry `listing` of the table's seq_chunks.
int32_t ShiftOf(const ChunkTableView& table, int32_t listing) {
  return table.seq_shifts ? table.seq_shifts[listing] : 0;
}

using Member = SharedRun::Member;
using Segment = ChunkDecodeSegment;
using Piece = ChunkDecodePiece;
using Shares = ChunkDecodeShares;

// The segments of a table: parts of shared runs, then what sequences read alone.
class Segments {
 public:
  // The runs must outlive the segments, which point to the runs' members. With run_lanes, what
  // these read comes first.
  Segments(const ChunkTableView& table, int32_t group, std::span<const SharedRun> runs,
           bool run_lanes) {
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
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  std::span<const Segment> All() const { return segments_; }

 private:
  void AddChunk(const ChunkTableView& table, int32_t chunk, Segment& segment) {
    const int32_t length = table.chunk_lengths[chunk];
    if (length == 0) return;
    ranges_.push_back({table.chunk_page_indptr[chunk], 0, length});
    segment.ranges = {ranges_.data() + ranges_.size() - segment.ranges.size() - 1,
                      segment.ranges.size() + 1};
    segment.tiles += segment.TilesOf(length);
  }

  // Cuts a shared run into parts of members whose query rows fit one block.
  void AddRun(const ChunkTableView& table, const SharedRun& run, int32_t group, bool by_run_lanes) {
    Segment part{.shared = true, .by_run_lanes = by_run_lanes};
    for (const int32_t chunk : run.chunks) AddChunk(table, chunk, part);
    if (part.tiles == 0) return;
    for (std::span<const Member> left = run.members; !left.empty();) {
      const auto members = static_cast<int32_t>(left.size());
      const int32_t count =
          by_run_lanes ? RunPartMembers(members, group) : SharedPartMembers(members, group);
      part.members = left.first(static_cast<size_t>(count));
      part.wide = count * group > kChunkDecodeNarrowRows;
      segments_.push_back(part);
      left = left.subspan(part.members.size());
    }
  }

  void AddAlone(const ChunkTableView& table, std::span<const SharedRun> runs) {
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
        Segment segment;  // what lies between shared chunks is one segment, too
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

  std::vector<Segment> segments_;
  // What the segments point to. Both have room for all from the beginning.
  std::vector<ChunkDecodeRange> ranges_;
  std::vector<Member> members_;
};

// Whether every segment is all that its one sequence reads, but for what run lanes read.
bool OneSegmentEach(std::span<const Segment> segments) {
  int32_t last = -1;  // segments come in order of sequences
  return std::ranges::all_of(segments, [&last](const Segment& segment) {
    if (segment.by_run_lanes) return true;
    if (segment.shared || segment.members.size() != 1) return false;
    return std::exchange(last, segment.members[0].seq) < segment.members[0].seq;
  });
}

// The tokens of each sequence.
std::vector<int64_t> LengthsOf(const ChunkTableView& table) {
  std::vector<int64_t> lengths;
  for (int32_t s = 0; s < table.num_seqs; ++s) lengths.push_back(SequenceLength(table, s));
  return lengths;
}

// Of sequences with so many tokens each, which may be none.
ChunkDecodeLoad LoadOf(std::span<const int64_t> lengths) {
  ChunkDecodeLoad load{.num_seqs = static_cast<int32_t>(lengths.size())};
  for (const int64_t length : lengths) {
    load.longest = std::max(load.longest, length);
    load.tokens += length;
  }
  return load;
}

// Of what a plan's sequences read by other lanes than run lanes.
ChunkDecodeLoad LoadOf(const ChunkDecodePlan& plan) {
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

// Appends the ranges that cover a piece of a segment.
void AddRanges(const Segment& segment, const Piece& piece, std::vector<ChunkDecodeRange>& ranges) {
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

}  // namespace

ChunkDecodeGrid ChunkDecodeFullGrid(const PagedKvLayout& layout, const DeviceFacts& device) {
  const int64_t blocks = device.sm_count * ChunkDecodeBlocksPerSm(layout.head_dim, device);
  return {.num_lanes = static_cast<int32_t>(std::max<int64_t>(1, blocks / layout.num_kv_heads)),
          .cluster_lanes = 1};
}

ChunkDecodeGrid ChunkDecodeClusterGrid(int32_t num_seqs, const PagedKvLayout& layout,
                                       const DeviceFacts& device) {
  // Clusters of eight blocks fill 120 of 132 SMs, whose groups of SMs are whole. Of the four blocks
  // of head_dim 64 that an SM has room for, three leave some to the kernels before and after.
  const int64_t blocks_per_sm =
      std::min<int64_t>(3, ChunkDecodeBlocksPerSm(layout.head_dim, device));
  const int64_t blocks = device.sm_count * 10 / 11 * blocks_per_sm;
  int32_t cluster = device.HasClusters() ? kChunkDecodeMaxClusterLanes : 1;
  while (cluster > 1 && int64_t{num_seqs} * layout.num_kv_heads * cluster > blocks) cluster /= 2;
  return {.num_lanes = num_seqs * cluster, .cluster_lanes = cluster};
}

ChunkDecodeGrid ChunkDecodeWarpGrid(const PagedKvLayout& layout, const DeviceFacts& device) {
  const int64_t block_bytes = ChunkDecodeWarpsSharedBytes(layout.head_dim);
  if (block_bytes > device.shared_bytes_per_block) return {};
  const int64_t blocks =
      device.sm_count * ChunkDecodeBlocksPerSmOf(block_bytes, layout.head_dim, device);
  const int64_t of_head = std::max<int64_t>(1, blocks / layout.num_kv_heads);
  return {.num_lanes = static_cast<int32_t>(of_head) * kChunkDecodeWarps,
          .cluster_lanes = 1,
          .block_lanes = kChunkDecodeWarps};
}

std::ostream& operator<<(std::ostream& out, const ChunkDecodeGrid& grid) {
  out << grid.num_lanes << " lanes";
  if (grid.cluster_lanes > 1) out << " in clusters of " << grid.cluster_lanes;
  if (grid.block_lanes > 1) out << ", " << grid.block_lanes << " to a block";
  if (grid.run_lanes > 0) out << " after " << grid.run_lanes << " run lanes";
  if (grid.takes_parts) out << ", with parts";
  return out;
}

std::vector<ChunkDecodeGrid> ChunkDecodeGrids(int32_t num_seqs, const PagedKvLayout& layout,
                                              const DeviceFacts& device) {
  std::vector<ChunkDecodeGrid> grids = {ChunkDecodeFullGrid(layout, device)};
  const ChunkDecodeGrid clusters = ChunkDecodeClusterGrid(num_seqs, layout, device);
  if (clusters.cluster_lanes > 1) grids.push_back(clusters);
  ChunkDecodeGrid warps = ChunkDecodeWarpGrid(layout, device);
  if (warps.num_lanes > 0) {
    grids.push_back(warps);
    warps.takes_parts = true;
    grids.push_back(warps);
  }
  return grids;
}

namespace {

// What a tile takes if so many of the tokens have been read by others: they come from the L2.
double SharedTileUs(double cached, double all) {
  return kChunkDecodeTimes.memory_tile_us +
         (kChunkDecodeTimes.cached_tile_us - kChunkDecodeTimes.memory_tile_us) * cached / all;
}

// `full` is the full grid, on which a tile takes `tile_us`.
double GridUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& grid, const ChunkDecodeGrid& full,
              int32_t head_dim, int32_t group, double tile_us = kChunkDecodeTimes.memory_tile_us) {
  if (grid.cluster_lanes > 1) return ClustersUs(load, grid, full, head_dim, group, tile_us);
  if (grid.block_lanes > 1) {
    const double us = WarpsUs(load, grid, full, head_dim, group, tile_us);
    return grid.takes_parts ? us * kChunkDecodeTimes.warp_parts_margin : us;
  }
  return LanesUs(load, grid, group, tile_us);
}

}  // namespace

ChunkDecodeGrid ChooseChunkDecodeGrid(const ChunkDecodeLoad& load, const PagedKvLayout& layout,
                                      int32_t group, const DeviceFacts& device) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, device);
  if (load.num_seqs == 0) return full;
  return std::ranges::min(ChunkDecodeGrids(load.num_seqs, layout, device), {},
                          [&](const ChunkDecodeGrid& grid) {
                            return GridUs(load, grid, full, layout.head_dim, group);
                          });
}

std::vector<ChunkDecodeGrid> ChunkDecodeRunGrids(const PagedKvLayout& layout,
                                                 const DeviceFacts& device) {
  if (!device.HasHopperCode()) return {};
  std::vector<ChunkDecodeGrid> grids = {ChunkDecodeFullGrid(layout, device),
                                        ChunkDecodeWarpGrid(layout, device)};
  for (ChunkDecodeGrid& grid : grids) {
    grid.run_lanes = std::max(1, device.sm_count / layout.num_kv_heads);
  }
  return grids;
}

ChunkDecodeGrid ChooseChunkDecodeRunGrid(std::span<const SharedRun> runs,
                                         std::span<const int64_t> lengths,
                                         const PagedKvLayout& layout, int32_t group,
                                         const DeviceFacts& device, ChunkSharing sharing) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, device);
  const auto num_seqs = static_cast<int32_t>(lengths.size());
  // Run lanes count arrivals, but add no states, so no bundle may end with one of theirs.
  if (!device.HasHopperCode() || ChunkDecodeBundles(full, num_seqs, group)) return full;
  std::vector<int64_t> own(lengths.begin(), lengths.end());
  int64_t parts = 0, tiles = 0, cached_tokens = 0;
  bool all = true;
  for (const SharedRun& run : runs) {
    if (!RunLanesRead(run, group)) {
      all = false;
      continue;
    }
    if (run.tokens == 0) continue;
    const int64_t of_run = NumRunParts(static_cast<int32_t>(run.members.size()), group);
    parts += of_run;
    tiles += of_run * DivideUp(run.tokens, int64_t{kChunkDecodeTileTokens});
    cached_tokens += run.tokens * (std::ssize(run.members) - 1);
    for (const Member& member : run.members) own[static_cast<size_t>(member.seq)] -= run.tokens;
  }
  if (parts == 0) return full;
  const std::vector<ChunkDecodeGrid> grids = ChunkDecodeRunGrids(layout, device);
  const ChunkDecodeGrid &blocks = grids[0], &warps = grids[1];
  // About so many states of run lanes has a sequence.
  const auto states = static_cast<int32_t>(std::max<int64_t>(1, blocks.run_lanes / parts));
  const ChunkDecodeLoad load = LoadOf(own);
  const double blocks_us =
      LanesUs(load, full, group) + DivideUp(num_seqs, full.num_lanes) *
                                       (kChunkDecodeTimes.state_us + kChunkDecodeTimes.merge_us +
                                        AddStatesUs(states + 1, group));
  const double warps_us = WarpsUs(load, warps, full, layout.head_dim, group) +
                          RunStatesUs(states, num_seqs, warps, group);
  const bool takes_warps = all && warps_us < blocks_us;  // warps share nothing else
  const ChunkDecodeGrid& grid = takes_warps ? warps : blocks;
  if (sharing == ChunkSharing::kAlways) return grid;
  const double run_us =
      kChunkDecodeTimes.run_us +
      RunTaskUs(static_cast<int32_t>(DivideUp(tiles, int64_t{blocks.run_lanes}))) +
      (takes_warps ? warps_us : blocks_us);
  const ChunkDecodeLoad alone = LoadOf(lengths);
  const double tile_us =
      SharedTileUs(static_cast<double>(cached_tokens), static_cast<double>(alone.tokens));
  double alone_us = std::numeric_limits<double>::infinity();
  for (const ChunkDecodeGrid& other : ChunkDecodeGrids(num_seqs, layout, device)) {
    alone_us = std::min(alone_us, GridUs(alone, other, full, layout.head_dim, group, tile_us));
  }
  return run_us + kChunkDecodeTimes.least_gain_us < alone_us ? grid : full;
}

namespace {

// Where the arrays of a plan begin, in the order of ChunkDecodePlanView, and where the last ends.
std::array<int64_t, 6> OffsetsIn(const ChunkDecodePlanRoom& room) {
  int64_t end = 0;
  const auto take = [&end](int64_t count, size_t size) {
    return std::exchange(end, end + RoundUp(count * static_cast<int64_t>(size), kAlignment));
  };
  return {take(room.grid.AllLanes() + 1, sizeof(int32_t)),
          take(room.tasks, sizeof(ChunkDecodeTask)),
          take(room.ranges, sizeof(ChunkDecodeRange)),
          take(room.members, sizeof(ChunkDecodeMember)),
          take(room.num_seqs + 1, sizeof(int32_t)),
          end};
}

}  // namespace

int64_t ChunkDecodePlanRoom::Bytes() const { return OffsetsIn(*this).back(); }

ChunkDecodePlanView ChunkDecodePlanRoom::View(const std::byte* block) const {
  if (block == nullptr) return {.grid = grid};
  const auto [lanes, tasks_at, ranges_at, members_at, partials, end] = OffsetsIn(*this);
  return {.grid = grid,
          .lane_task_indptr = reinterpret_cast<const int32_t*>(block + lanes),
          .tasks = reinterpret_cast<const ChunkDecodeTask*>(block + tasks_at),
          .ranges = reinterpret_cast<const ChunkDecodeRange*>(block + ranges_at),
          .members = reinterpret_cast<const ChunkDecodeMember*>(block + members_at),
          .seq_partial_indptr = reinterpret_cast<const int32_t*>(block + partials)};
}

bool ChunkDecodePlanRoom::Holds(const ChunkDecodePlanRoom& other) const {
  return grid == other.grid && num_seqs >= other.num_seqs && tasks >= other.tasks &&
         ranges >= other.ranges && members >= other.members;
}

std::span<const int32_t> ChunkDecodePlan::LaneTaskIndptr() const {
  return {View().lane_task_indptr, static_cast<size_t>(size.grid.AllLanes()) + 1};
}
std::span<const ChunkDecodeTask> ChunkDecodePlan::Tasks() const {
  return {View().tasks, static_cast<size_t>(size.tasks)};
}
std::span<const ChunkDecodeRange> ChunkDecodePlan::Ranges() const {
  return {View().ranges, static_cast<size_t>(size.ranges)};
}
std::span<const ChunkDecodeMember> ChunkDecodePlan::Members() const {
  return {View().members, static_cast<size_t>(size.members)};
}
std::span<const int32_t> ChunkDecodePlan::SeqPartialIndptr() const {
  return {View().seq_partial_indptr, static_cast<size_t>(size.num_seqs) + 1};
}

void ChunkDecodePlan::CopyTo(const ChunkDecodePlanRoom& room, std::byte* to) const {
  Require(room.Holds(size), "the plan has ", size.grid, ", ", size.num_seqs, " sequences, ",
          size.tasks, " tasks, ", size.ranges, " ranges and ", size.members,
          " members; there is room for ", room.grid, ", ", room.num_seqs, " sequences, ",
          room.tasks, " tasks, ", room.ranges, " ranges and ", room.members, " members");
  const auto source = OffsetsIn(size), target = OffsetsIn(room);
  for (size_t i = 0; i + 1 < source.size(); ++i) {
    std::memcpy(to + target[i], block.data() + source[i],
                static_cast<size_t>(source[i + 1] - source[i]));
  }
}

namespace {

// A plan while its arrays grow.
struct Draft {
  ChunkDecodeGrid grid;
  std::vector<int32_t> lane_task_indptr{0};
  std::vector<ChunkDecodeTask> tasks;
  std::vector<ChunkDecodeRange> ranges;
  std::vector<ChunkDecodeMember> members;
  std::vector<int32_t> seq_partial_indptr{0};

  ChunkDecodePlan Pack() const {
    ChunkDecodePlan plan{.size = {.grid = grid,
                                  .num_seqs = std::ssize(seq_partial_indptr) - 1,
                                  .tasks = std::ssize(tasks),
                                  .ranges = std::ssize(ranges),
                                  .members = std::ssize(members)},
                         .block = {},
                         .num_partials = seq_partial_indptr.back(),
                         .reads_once = members.size() > tasks.size()};
    const auto at = OffsetsIn(plan.size);
    plan.block.resize(static_cast<size_t>(at.back()));
    const auto put = [&plan](const auto& array, int64_t offset) {
      const auto bytes = std::as_bytes(std::span(array));
      std::ranges::copy(bytes, plan.block.begin() + offset);
    };
    put(lane_task_indptr, at[0]);
    put(tasks, at[1]);
    put(ranges, at[2]);
    put(members, at[3]);
    put(seq_partial_indptr, at[4]);
    return plan;
  }
};

ChunkDecodePlan PlanSegments(const ChunkTableView& table, std::span<const Segment> segments,
                             const PagedKvLayout& layout, int32_t group, const DeviceFacts& device,
                             ChunkDecodeGrid grid) {
  if (grid.num_lanes == 0) {
    grid = OneSegmentEach(segments)
               ? ChooseChunkDecodeGrid(LoadOf(LengthsOf(table)), layout, group, device)
               : ChunkDecodeFullGrid(layout, device);
  }
  const bool clustered = grid.cluster_lanes > 1;
  Require(grid.run_lanes == 0 || !clustered, "grid has ", grid,
          "; there are no run lanes with clusters");
  Require(!grid.takes_parts || (grid.block_lanes > 1 && grid.run_lanes == 0), "grid has ", grid,
          "; only lanes of a warp take parts, and not after run lanes");
  const auto num_segments = static_cast<int64_t>(segments.size());
  Require(!clustered || device.HasClusters(), "grid has clusters of ", grid.cluster_lanes,
          " lanes; they need compute capability 9.0 and code compiled for it, here ",
          device.compute_major, ".", device.compute_minor, " and code for ",
          device.code_architecture / 10, ".", device.code_architecture % 10);
  Require(grid.num_lanes % (grid.cluster_lanes * grid.block_lanes) == 0, "grid has ", grid,
          "; clusters and blocks must be whole");
  Require(
      !clustered || (grid.block_lanes == 1 && num_segments * grid.cluster_lanes <= grid.num_lanes),
      "grid has ", grid, " for ", num_segments,
      " segments; each must have a cluster of its own, of whole blocks");
  Require(!grid.ReadsWhole() || OneSegmentEach(segments), "grid has ", grid, " for ", num_segments,
          " segments; each must be a sequence's only one");
  const ChunkDecodeDeal deal = clustered ? ChunkDecodeDeal{DealToClusters(segments, grid), {}}
                               : grid.block_lanes > 1
                                   ? DealToWarps(segments, grid, group)
                                   : DealSegments(segments, table.num_seqs, grid, group);
  const Shares& shares = deal.shares;
  // The lanes of a cluster make one state.
  const auto makes_state = [&](int32_t lane) { return lane % grid.cluster_lanes == 0; };

  Draft plan{.grid = grid};
  plan.tasks.reserve(shares.size() + static_cast<size_t>(table.num_seqs));
  plan.ranges.reserve(plan.tasks.capacity());
  plan.members.reserve(plan.tasks.capacity());

  // A sequence's partial states lie side by side, so count them first. Sequences that no lane but a
  // run lane reads are handed out too: their rows of the output are zeroed, or their states added.
  const auto num_seqs = static_cast<size_t>(table.num_seqs);
  std::vector<int32_t> states(num_seqs, 0), run_states(num_seqs, 0);
  for (const Piece& piece : shares) {
    if (!makes_state(piece.lane)) continue;
    auto& counts = piece.lane < grid.num_lanes ? states : run_states;
    for (const Member& member : segments[static_cast<size_t>(piece.segment)].members) {
      ++counts[static_cast<size_t>(member.seq)];
    }
  }
  const auto unread = [&](int32_t seq) { return states[static_cast<size_t>(seq)] == 0; };
  // The only task of a sequence writes its output. A warp adds the states of run lanes to its own.
  const auto leaves_state = [&](size_t seq) {
    return std::max(1, states[seq]) + (grid.block_lanes == 1 ? run_states[seq] : 0) > 1;
  };
  std::vector<int32_t> next;
  for (size_t seq = 0; seq < num_seqs; ++seq) {
    next.push_back(plan.seq_partial_indptr.back());
    const int32_t own = leaves_state(seq) ? std::max(1, states[seq]) : 0;
    plan.seq_partial_indptr.push_back(next.back() + own + run_states[seq]);
  }
  const auto next_partial = [&](int32_t of, int32_t lane) {
    const auto seq = static_cast<size_t>(of);
    return leaves_state(seq) || lane >= grid.num_lanes ? next[seq]++ : -1;
  };
  const auto close_task = [&plan](ChunkDecodeTask task) {
    const int64_t count = std::ssize(plan.members) - task.member_begin;
    task.member_count = static_cast<int16_t>(count);  // at most kChunkDecodeRunRows
    task.range_end = static_cast<int32_t>(plan.ranges.size());
    plan.tasks.push_back(task);
  };
  const auto open_task = [&plan]() {
    return ChunkDecodeTask{.member_begin = static_cast<int32_t>(plan.members.size()),
                           .member_count = 0,
                           .clustered = 0,
                           .range_begin = static_cast<int32_t>(plan.ranges.size()),
                           .range_end = 0,
                           .first_range = {},
                           .first_member = {},
                           .first_states = 0,
                           .first_states_begin = 0};
  };
  ChunkDecodeTask first_of_cluster{};
  auto piece = shares.begin();
  // Unread sequences go to clusters evenly, otherwise to the lanes that end first.
  std::vector<int32_t> empty_lanes;
  for (int32_t seq = 0, lane = 0; clustered && seq < table.num_seqs; ++seq) {
    while (int64_t{table.num_seqs} * (lane + 1) / grid.num_lanes <= seq) ++lane;
    if (unread(seq)) empty_lanes.push_back(lane);
  }
  if (!clustered) {
    empty_lanes =
        LanesOfEmptyTasks(deal.lane_ends_us, std::ranges::count(states, 0),
                          grid.block_lanes > 1 ? kChunkDecodeTimes.warp_task_us : TaskUs(group));
  }
  auto empty_lane = empty_lanes.begin();
  int32_t empty_seq = 0;
  for (int32_t lane = 0; lane < grid.AllLanes(); ++lane) {
    const auto add_empty_tasks = [&] {
      for (; empty_lane != empty_lanes.end() && *empty_lane == lane; ++empty_lane) {
        while (!unread(empty_seq)) ++empty_seq;
        const ChunkDecodeTask task = open_task();
        plan.members.push_back({empty_seq, 0, next_partial(empty_seq, lane)});
        ++empty_seq;
        close_task(task);
      }
    };
    // The last task of a cluster's lane is its share of the sequence. Otherwise what loads comes
    // first, because a block or warp loads its first task before the launch before has ended.
    if (clustered) add_empty_tasks();
    for (; piece != shares.end() && piece->lane == lane; ++piece) {
      const Segment& segment = segments[static_cast<size_t>(piece->segment)];
      ChunkDecodeTask task = open_task();
      task.clustered = clustered;
      AddRanges(segment, *piece, plan.ranges);
      if (!makes_state(lane)) {  // as the cluster's first lane
        task.member_begin = first_of_cluster.member_begin;
        task.member_count = first_of_cluster.member_count;
        task.range_end = static_cast<int32_t>(plan.ranges.size());
        plan.tasks.push_back(task);
        continue;
      }
      for (const Member& member : segment.members) {
        plan.members.push_back({member.seq, member.shift, next_partial(member.seq, lane)});
      }
      close_task(task);
      first_of_cluster = plan.tasks.back();
    }
    if (!clustered) add_empty_tasks();
    plan.lane_task_indptr.push_back(static_cast<int32_t>(plan.tasks.size()));
  }
  for (ChunkDecodeTask& task : plan.tasks) {
    if (task.range_begin < task.range_end) {
      task.first_range = plan.ranges[static_cast<size_t>(task.range_begin)];
    }
    task.first_member = plan.members[static_cast<size_t>(task.member_begin)];
    const int32_t* const indptr = plan.seq_partial_indptr.data() + task.first_member.seq;
    task.first_states = indptr[1] - indptr[0];
    task.first_states_begin = indptr[0];
  }
  return plan.Pack();
}

}  // namespace

ChunkDecodePlan PlanChunkDecode(const ChunkTableView& table, const PagedKvLayout& layout,
                                int32_t num_q_heads, const DeviceFacts& device,
                                const ChunkDecodePlanOptions& options) {
  const int32_t group = GroupOf(num_q_heads, layout);
  const auto plan = [&](const Segments& segments, const ChunkDecodeGrid& grid) {
    return PlanSegments(table, segments.All(), layout, group, device, grid);
  };
  const Segments alone(table, group, {}, false);
  const std::span<const SharedRun> runs = options.runs;
  const bool reads_whole = options.grid.ReadsWhole() && options.grid.run_lanes == 0;
  if (runs.empty() || options.sharing == ChunkSharing::kNever || reads_whole) {
    return plan(alone, options.grid);
  }
  ChunkDecodeGrid once_grid = options.grid;
  if (once_grid.num_lanes == 0) {
    once_grid =
        ChooseChunkDecodeRunGrid(runs, LengthsOf(table), layout, group, device, options.sharing);
  }
  const bool by_run_lanes =
      once_grid.run_lanes > 0 && !ChunkDecodeBundles(once_grid, table.num_seqs, group);
  const Segments shared(table, group, runs, by_run_lanes);
  if (once_grid.ReadsWhole() && !OneSegmentEach(shared.All())) {
    if (options.grid.num_lanes > 0) return plan(alone, options.grid);
    once_grid =
        ChunkDecodeRunGrids(layout, device)[0];  // blocks read several segments of a sequence
  }
  ChunkDecodePlan once = plan(shared, once_grid);
  const bool fits = options.room == nullptr || options.room->Holds(once.size);
  if (!once.reads_once || !fits) return plan(alone, options.grid);
  if (options.sharing == ChunkSharing::kAlways) return once;
  // A sequence that reads alone finds in the L2 what others have read.
  double tiles = 0, cached_tiles = 0;
  for (const Segment& segment : alone.All()) tiles += segment.tiles;
  for (const SharedRun& run : runs) {
    for (const int32_t chunk : run.chunks) {
      const int64_t of_chunk = DivideUp(table.chunk_lengths[chunk], kChunkDecodeTileTokens);
      cached_tiles += static_cast<double>((std::ssize(run.members) - 1) * of_chunk);
    }
  }
  const double tile_us = SharedTileUs(cached_tiles, tiles);
  ChunkDecodePlan each = plan(alone, options.grid);
  const auto time_of = [&](const ChunkDecodePlan& of, double of_tile_us) {
    const ChunkDecodeGrid& grid = of.size.grid;
    if (!grid.ReadsWhole()) return RunLanesUs(of) + EstimateUs(of, group, of_tile_us);
    const int64_t states = grid.run_lanes > 0 ? of.num_partials / of.size.num_seqs : 0;
    return RunLanesUs(of) + RunStatesUs(states, table.num_seqs, grid, group) +
           GridUs(LoadOf(of), grid, ChunkDecodeFullGrid(layout, device), layout.head_dim, group,
                  of_tile_us);
  };
  const double once_us = time_of(once, kChunkDecodeTimes.memory_tile_us);
  const double each_us = time_of(each, tile_us);
  return once_us + kChunkDecodeTimes.least_gain_us < each_us ? once : each;
}

ChunkDecodeWorkspace ChunkDecodeWorkspaceLayout(int32_t num_seqs, int64_t max_partials,
                                                int32_t num_q_heads, const PagedKvLayout& layout) {
  const int64_t rows = max_partials * num_q_heads;
  ChunkDecodeWorkspace workspace;
  workspace.max_sum = workspace.counters + ChunkDecodeCounterBytes(num_seqs, layout);
  workspace.outputs = workspace.max_sum + RoundUp(rows * 2 * int64_t{sizeof(float)}, kAlignment);
  workspace.bytes =
      workspace.outputs + RoundUp(rows * layout.head_dim * int64_t{sizeof(float)}, kAlignment);
  return workspace;
}

int64_t ChunkDecodeCounterBytes(int32_t num_seqs, const PagedKvLayout& layout) {
  const int64_t counters = int64_t{num_seqs} * layout.num_kv_heads * (1 + kChunkDecodeBundles);
  return RoundUp(counters * int64_t{sizeof(uint32_t)}, kAlignment);
}

int64_t ChunkDecodeWorkspaceBytes(int32_t num_seqs, int64_t max_partials, int32_t num_q_heads,
                                  const PagedKvLayout& layout) {
  return ChunkDecodeWorkspaceLayout(num_seqs, max_partials, num_q_heads, layout).bytes;
}

void Validate(const ChunkDecodeParams& params) {
  Validate(params.layout);
  const PagedKvLayout& layout = params.layout;
  GroupOf(params.num_q_heads, layout);
  Require(params.scale > 0, "scale is ", params.scale, "; it must be > 0");
  Require(params.table.num_seqs >= 0, "num_seqs is ", params.table.num_seqs, "; it must be >= 0");
  const int64_t width = int64_t{params.num_q_heads} * layout.head_dim;
  Require(params.q_stride >= width && params.q_stride % 8 == 0, "q_stride is ", params.q_stride,
          "; it must be a multiple of 8 and at least num_q_heads * head_dim = ", width);
  Require(params.out_stride >= width && params.out_stride % 8 == 0, "out_stride is ",
          params.out_stride,
          "; it must be a multiple of 8 and at least num_q_heads * head_dim = ", width);
  if (params.table.num_seqs == 0) return;
  Require(params.q && params.out, "q or out is null");
  Require(params.kv || layout.num_pages == 0, "kv is null but the pool has ", layout.num_pages,
          " pages");
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  Require(aligned(params.q) && aligned(params.out) && aligned(params.kv), "q ", params.q, ", out ",
          params.out, " and kv ", params.kv, " must be 16 B aligned");
  Require((params.rope_cos_sin == nullptr) == (params.rope_rows == 0), "rope_rows is ",
          params.rope_rows, " with rope_cos_sin ", params.rope_cos_sin, "; give both or neither");
}

Cost CostOf(const ChunkDecodeParams& params) {
  const ChunkTableView& table = params.table;
  const double element = static_cast<double>(SizeOf(params.dtype));
  const double head_dim = params.layout.head_dim;
  const double query_elements = double(table.num_seqs) * params.num_q_heads * head_dim;
  std::vector<bool> listed(static_cast<size_t>(table.num_chunks), false);
  double context_tokens = 0, distinct_tokens = 0;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      context_tokens += table.chunk_lengths[chunk];
      if (!listed[static_cast<size_t>(chunk)]) distinct_tokens += table.chunk_lengths[chunk];
      listed[static_cast<size_t>(chunk)] = true;
    }
  }
  Cost cost;
  cost.read_bytes = query_elements * element;                                                // q
  cost.read_bytes += distinct_tokens * params.layout.num_kv_heads * 2 * head_dim * element;  // K, V
  cost.write_bytes = query_elements * element;                                               // out
  if (params.lse_ln) cost.write_bytes += double(table.num_seqs) * params.num_q_heads * 4;    // lse
  cost.flops = 4 * context_tokens * params.num_q_heads * head_dim;  // q k and p v
  return cost;
}

}  // namespace tokline
