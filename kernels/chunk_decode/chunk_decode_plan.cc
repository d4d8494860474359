// Plans a step of chunk_decode. A sequence's context becomes segments: runs of chunks that the same
// members read with the same shifts. If there are few segments, each gets a whole cluster of lanes
// (a lane is one block per KV head); many or short ones are dealt to warp lanes. Otherwise segments
// are dealt to block lanes, those that sequences share first, so that the last lane ends as early
// as the model of a block's time allows. Where a segment is cut, its members get further partial
// states.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_segments.h"
#include "kernels/chunk_decode/chunk_decode_shares.h"
#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

using Member = SharedRun::Member;
using Segment = ChunkDecodeSegment;
using Piece = ChunkDecodePiece;
using Shares = ChunkDecodeShares;

// The offsets at which the arrays of a plan begin, in the order of ChunkDecodePlanView, and at
// which the last one ends.
std::array<int64_t, 7> OffsetsIn(const ChunkDecodePlanRoom& room) {
  int64_t end = 0;
  const auto take = [&end](int64_t count, size_t size) {
    return std::exchange(end,
                         end + RoundUp(count * static_cast<int64_t>(size), kChunkDecodeAlignment));
  };
  return {take(room.grid.AllLanes() + 1, sizeof(int32_t)),
          take(room.tasks, sizeof(ChunkDecodeTask)),
          take(room.ranges, sizeof(ChunkDecodeRange)),
          take(room.members, sizeof(ChunkDecodeMember)),
          take(room.num_seqs + 1, sizeof(int32_t)),
          take(room.grid.num_lanes, sizeof(ChunkDecodeLaneStart)),
          end};
}

}  // namespace

int64_t ChunkDecodePlanRoom::Bytes() const { return OffsetsIn(*this).back(); }

ChunkDecodePlanView ChunkDecodePlanRoom::View(const std::byte* block) const {
  if (block == nullptr) return {.grid = grid};
  const auto [lanes, tasks_at, ranges_at, members_at, partials, starts, end] = OffsetsIn(*this);
  return {.grid = grid,
          .lane_task_indptr = reinterpret_cast<const int32_t*>(block + lanes),
          .tasks = reinterpret_cast<const ChunkDecodeTask*>(block + tasks_at),
          .ranges = reinterpret_cast<const ChunkDecodeRange*>(block + ranges_at),
          .members = reinterpret_cast<const ChunkDecodeMember*>(block + members_at),
          .seq_partial_indptr = reinterpret_cast<const int32_t*>(block + partials),
          .lane_starts = reinterpret_cast<const ChunkDecodeLaneStart*>(block + starts)};
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

  std::vector<ChunkDecodeLaneStart> LaneStarts(std::span<const int32_t> pages,
                                               PageSplit split) const {
    std::vector<ChunkDecodeLaneStart> starts(static_cast<size_t>(grid.num_lanes));
    for (size_t lane = 0; lane < starts.size(); ++lane) {
      ChunkDecodeLaneStart& start = starts[lane];
      start.task_begin = lane_task_indptr[lane];
      start.task_end = lane_task_indptr[lane + 1];
      if (start.task_begin == start.task_end) continue;
      start.task = tasks[static_cast<size_t>(grid.cluster_lanes > 1 ? start.task_end - 1
                                                                    : start.task_begin)];
      if (start.task.range_begin == start.task.range_end) continue;
      const ChunkDecodeRange& range = start.task.first_range;
      int32_t token = range.token_begin;
      for (int32_t& page : start.pages) {
        const auto at = static_cast<size_t>(range.page_begin + split.PageOf(token));
        if (token < range.token_end && at < pages.size()) page = pages[at];
        token += 16;
      }
    }
    return starts;
  }

  ChunkDecodePlan Pack(const ChunkTableView& table, PageSplit split) const {
    for (size_t seq = 0; seq + 1 < seq_partial_indptr.size(); ++seq) {
      const int32_t states = seq_partial_indptr[seq + 1] - seq_partial_indptr[seq];
      Require(states <= kChunkDecodeMaxStates, "sequence ", seq, " has ", states,
              " partial states, by its shifts or the runs that it shares; at most ",
              kChunkDecodeMaxStates, " are supported");
    }
    ChunkDecodePlan plan{.size = {.grid = grid,
                                  .num_seqs = std::ssize(seq_partial_indptr) - 1,
                                  .tasks = std::ssize(tasks),
                                  .ranges = std::ssize(ranges),
                                  .members = std::ssize(members)},
                         .block = {},
                         .num_partials = seq_partial_indptr.back()};
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
    // A table may have no pages if its plan is only inspected.
    const int32_t num_pages =
        table.chunk_pages == nullptr ? 0 : table.chunk_page_indptr[table.num_chunks];
    put(LaneStarts({table.chunk_pages, static_cast<size_t>(num_pages)}, split), at[5]);
    return plan;
  }
};

}  // namespace

ChunkDecodePlan PlanChunkDecode(const ChunkTableView& table, const PagedKvLayout& layout,
                                int32_t num_q_heads, const DeviceFacts& device,
                                const ChunkDecodeChoice& choice) {
  const int32_t group = GroupOf(num_q_heads, layout);
  ChunkDecodeGrid grid = choice.grid;
  const bool by_run_lanes =
      grid.num_lanes > 0 && grid.run_lanes > 0 && !ChunkDecodeBundles(grid, table.num_seqs, group);
  const ChunkDecodeSegments all(table, group, choice.runs, by_run_lanes);
  const std::span<const Segment> segments = all.All();
  if (grid.num_lanes == 0) {
    grid = OneSegmentEach(segments)
               ? ChooseChunkDecodeGrid(LoadOf(SequenceLengths(table)), layout, group, device)
               : ChunkDecodeFullGrid(layout, device);
  }
  const bool clustered = grid.cluster_lanes > 1;
  Require(grid.run_lanes == 0 || !clustered, "grid has ", grid,
          "; there are no run lanes with clusters");
  Require(!grid.takes_parts || ((grid.block_lanes > 1 || clustered) && grid.run_lanes == 0),
          "grid has ", grid,
          "; only clusters and lanes of a warp take parts, and not after run lanes");
  Require(grid.HasWholeWaves(), "grid has ", grid,
          "; only clusters with parts have waves, of whole clusters");
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
  const ChunkDecodeSms sms = ChunkDecodeSmsOf(grid, layout, device);
  const ChunkDecodeDeal deal = clustered ? ChunkDecodeDeal{DealToClusters(segments, grid), {}}
                               : grid.block_lanes > 1
                                   ? DealToWarps(segments, grid, group, sms)
                                   : DealSegments(segments, table.num_seqs, grid, group, sms);
  const Shares& shares = deal.shares;
  // The lanes of a cluster produce one state.
  const auto makes_state = [&](int32_t lane) { return lane % grid.cluster_lanes == 0; };

  Draft plan{.grid = grid};
  plan.tasks.reserve(shares.size() + static_cast<size_t>(table.num_seqs));
  plan.ranges.reserve(plan.tasks.capacity());
  plan.members.reserve(plan.tasks.capacity());

  // A sequence's partial states lie side by side, so count them first. Sequences that no lane or
  // only run lanes read are dealt out too: their rows of the output must be zeroed, or their states
  // added.
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
  // Unread sequences are spread evenly over clusters if there are any, and otherwise go to the
  // lanes that end first.
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
    // The last task of a cluster's lane is its share of the sequence. In other grids the tasks that
    // load come first, because a block or warp loads its first task before the previous launch has
    // ended.
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
  return plan.Pack(table, layout.Pages());
}

}  // namespace tokline
