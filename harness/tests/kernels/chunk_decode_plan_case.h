// Plans of chunk_decode, and what every plan must hold.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "harness/tests/kernels/chunk_decode_case.h"
#include "harness/tests/kernels/devices.h"
#include "harness/tests/kernels/sequence_tokens.h"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/common/rounding.h"

namespace tokline::testing {

inline constexpr DeviceFacts kDevice = testing::kH200;

// Whether some task has several members.
inline bool ReadsOnce(const ChunkDecodePlan& plan) { return plan.size.members > plan.size.tasks; }

inline int32_t LaneOf(const ChunkDecodePlan& plan, size_t task) {
  const auto next = std::ranges::upper_bound(plan.LaneTaskIndptr(), static_cast<int32_t>(task));
  return static_cast<int32_t>(next - plan.LaneTaskIndptr().begin()) - 1;
}

inline constexpr PagedKvLayout kEightHeads{
    .num_pages = 4096, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};

// The plan of sequences of one chunk each.
inline ChunkDecodePlan PlanOf(std::span<const int32_t> lengths, const DeviceFacts& device = kDevice,
                              const ChunkDecodeGrid& grid = {}) {
  ChunkTable table;
  for (const int32_t length : lengths) {
    const std::vector<int32_t> pages(static_cast<size_t>(DivideUp(length, 256)), 0);
    const int32_t chunk = table.AddChunk(pages, length);
    table.AddSequence({&chunk, 1});
  }
  return PlanChunkDecode(table.View(), kEightHeads, 16, device, {.grid = grid});
}

// On lanes of a block, whatever would be chosen.
inline ChunkDecodePlan FullGridPlanOf(std::span<const int32_t> lengths) {
  return PlanOf(lengths, kDevice, ChunkDecodeFullGrid(kEightHeads, kDevice));
}

// How many tiles each lane reads.
inline std::vector<int64_t> LaneTiles(const ChunkDecodePlan& plan) {
  std::vector<int64_t> tiles(static_cast<size_t>(plan.size.grid.num_lanes), 0);
  for (size_t lane = 0; lane < tiles.size(); ++lane) {
    for (int32_t t = plan.LaneTaskIndptr()[lane]; t < plan.LaneTaskIndptr()[lane + 1]; ++t) {
      for (int32_t r = plan.Tasks()[t].range_begin; r < plan.Tasks()[t].range_end; ++r) {
        const ChunkDecodeRange& range = plan.Ranges()[r];
        tiles[lane] += DivideUp(range.token_end - range.token_begin, kChunkDecodeTileTokens);
      }
    }
  }
  return tiles;
}

// Checks that the lanes of a cluster all end, or all do not end, with a clustered task of the same
// member: its barriers hang otherwise. Their other tasks are of sequences without KV.
inline void CheckClusters(const ChunkDecodePlan& plan) {
  ASSERT_EQ(plan.size.grid.num_lanes % plan.size.grid.cluster_lanes, 0);
  for (const ChunkDecodeTask& task : plan.Tasks()) {
    if (plan.size.grid.cluster_lanes == 1) {
      EXPECT_EQ(task.clustered, 0);
      continue;
    }
    ASSERT_EQ(task.member_count, 1);
    EXPECT_TRUE(plan.size.grid.takes_parts || plan.Members()[task.member_begin].partial == -1);
    EXPECT_TRUE(task.clustered || task.range_begin == task.range_end);
  }
  for (int32_t lane = 0; lane < plan.size.grid.num_lanes; ++lane) {
    const int32_t begin = plan.LaneTaskIndptr()[lane], end = plan.LaneTaskIndptr()[lane + 1];
    for (int32_t t = begin; t + 1 < end; ++t) EXPECT_EQ(plan.Tasks()[t].clustered, 0) << lane;
    const int32_t first = lane / plan.size.grid.cluster_lanes * plan.size.grid.cluster_lanes;
    const int32_t first_end = plan.LaneTaskIndptr()[first + 1];
    const auto last_task = [&](int32_t from, int32_t to) {
      return from < to && plan.Tasks()[to - 1].clustered ? &plan.Tasks()[to - 1] : nullptr;
    };
    const ChunkDecodeTask* mine = last_task(begin, end);
    const ChunkDecodeTask* leader = last_task(plan.LaneTaskIndptr()[first], first_end);
    ASSERT_EQ(mine == nullptr, leader == nullptr) << "lane " << lane;
    if (mine == nullptr) continue;
    ASSERT_EQ(mine->member_count, leader->member_count);
    for (int32_t m = 0; m < mine->member_count; ++m) {
      const ChunkDecodeMember& a = plan.Members()[mine->member_begin + m];
      const ChunkDecodeMember& b = plan.Members()[leader->member_begin + m];
      EXPECT_TRUE(a.seq == b.seq && a.shift == b.shift && a.partial == b.partial) << lane;
    }
  }
}

// Checks that what a lane loads first is what the plan and the table say.
inline void CheckLaneStarts(const ChunkTableView& table, const PagedKvLayout& layout,
                            const ChunkDecodePlan& plan) {
  for (int32_t lane = 0; lane < plan.size.grid.num_lanes; ++lane) {
    const ChunkDecodeLaneStart& start = plan.View().lane_starts[lane];
    const int32_t begin = plan.LaneTaskIndptr()[lane], end = plan.LaneTaskIndptr()[lane + 1];
    ASSERT_EQ(start.task_begin, begin) << lane;
    ASSERT_EQ(start.task_end, end) << lane;
    if (begin == end) continue;
    const ChunkDecodeTask& task = plan.Tasks()[plan.size.grid.cluster_lanes > 1 ? end - 1 : begin];
    ASSERT_EQ(std::memcmp(&start.task, &task, sizeof(task)), 0) << lane;
    for (int32_t i = 0; i < std::ssize(start.pages) && task.range_begin < task.range_end; ++i) {
      const int32_t token = task.first_range.token_begin + 16 * i;
      if (token >= task.first_range.token_end) break;
      const int32_t page = task.first_range.page_begin + token / layout.page_size;
      ASSERT_EQ(start.pages[i], table.chunk_pages[page]) << "lane " << lane << " token " << token;
    }
  }
}

// Checks that a plan reads every (sequence, listed chunk, token) exactly once, with the right
// shift, in tasks that the kernel can run, and that partial states add up.
inline void CheckPlan(const ChunkTableView& table, const PagedKvLayout& layout, int32_t num_q_heads,
                      const ChunkDecodePlan& plan) {
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // seq, page_begin, token, shift
  std::map<Key, int> expected, actual;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    ForEachTokenOf(table, s, layout.page_size, [&](const SequenceToken& token) {
      ++expected[{s, table.chunk_page_indptr[token.chunk], token.index,
                  table.seq_shifts[token.listing]}];
    });
  }
  std::map<int32_t, std::vector<int32_t>> partials;  // by sequence
  std::vector<int> states(static_cast<size_t>(table.num_seqs), 0), run_states = states;
  ASSERT_EQ(plan.LaneTaskIndptr().size(), static_cast<size_t>(plan.size.grid.AllLanes()) + 1);
  ASSERT_EQ(plan.LaneTaskIndptr().back(), static_cast<int32_t>(plan.Tasks().size()));
  const int32_t group = num_q_heads / layout.num_kv_heads;
  CheckClusters(plan);
  CheckLaneStarts(table, layout, plan);
  for (size_t i = 0; i < plan.Tasks().size(); ++i) {
    const ChunkDecodeTask& task = plan.Tasks()[i];
    // The tasks of a cluster make one state.
    const bool makes_state = !task.clustered || LaneOf(plan, i) % plan.size.grid.cluster_lanes == 0;
    const bool by_run_lane = LaneOf(plan, i) >= plan.size.grid.num_lanes;
    ASSERT_GE(task.member_count, 1);
    ASSERT_LE(task.member_count * group, by_run_lane ? kChunkDecodeRunRows : kChunkDecodeMaxRows);
    ASSERT_TRUE(!by_run_lane || task.range_begin < task.range_end);
    const auto fields = [](const ChunkDecodeMember& m) {
      return std::array{m.seq, m.shift, m.partial};
    };
    const ChunkDecodeMember& first = plan.Members()[task.member_begin];
    ASSERT_EQ(fields(task.first_member), fields(first));
    const int32_t* const indptr = &plan.SeqPartialIndptr()[first.seq];
    ASSERT_EQ(task.first_states, indptr[1] - indptr[0]);
    ASSERT_EQ(task.first_states_begin, indptr[0]);
    if (task.range_begin < task.range_end) {
      const ChunkDecodeRange &range = plan.Ranges()[task.range_begin], &copy = task.first_range;
      ASSERT_EQ((std::array{range.page_begin, range.token_begin, range.token_end}),
                (std::array{copy.page_begin, copy.token_begin, copy.token_end}));
    }
    for (int32_t m = task.member_begin; m < task.member_begin + task.member_count; ++m) {
      const ChunkDecodeMember& member = plan.Members()[m];
      (by_run_lane ? run_states : states)[static_cast<size_t>(member.seq)] += makes_state;
      if (member.partial >= 0 && makes_state) partials[member.seq].push_back(member.partial);
      ASSERT_TRUE(!by_run_lane || (member.partial >= 0 && member.shift == 0));
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.Ranges()[r];
        ASSERT_EQ(
            range.token_begin % (by_run_lane ? kChunkDecodeRunTileTokens : kChunkDecodeTileTokens),
            0);
        ASSERT_LT(range.token_begin, range.token_end);
        for (int32_t t = range.token_begin; t < range.token_end; ++t) {
          ++actual[{member.seq, range.page_begin, t, member.shift}];
        }
      }
    }
  }
  EXPECT_EQ(actual, expected);
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    ASSERT_GE(states[s], 1) << "sequence " << s << " is written by no task";
    auto& list = partials[s];
    std::sort(list.begin(), list.end());
    // A warp adds the states of run lanes to its own.
    const bool leaves_state = states[s] + (plan.size.grid.block_lanes == 1 ? run_states[s] : 0) > 1;
    const int count = (leaves_state ? states[s] : 0) + run_states[s];
    std::vector<int32_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), plan.SeqPartialIndptr()[s]);
    EXPECT_EQ(list, all) << "sequence " << s;
    EXPECT_EQ(plan.SeqPartialIndptr()[s + 1] - plan.SeqPartialIndptr()[s], count);
  }
  EXPECT_EQ(plan.num_partials, plan.SeqPartialIndptr().back());
}

// The number of partial states of each sequence.
inline std::vector<int32_t> StatesOf(const ChunkDecodePlan& plan) {
  std::vector<int32_t> states;
  for (size_t s = 0; s + 1 < plan.SeqPartialIndptr().size(); ++s) {
    states.push_back(plan.SeqPartialIndptr()[s + 1] - plan.SeqPartialIndptr()[s]);
  }
  return states;
}

}  // namespace tokline::testing
