#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <set>

#include "harness/tests/kernels/chunk_decode_case.h"
#include "harness/tests/kernels/devices.h"
#include "kernels/chunk_decode/chunk_decode_policy.h"
#include "kernels/chunk_decode/chunk_decode_sharing.h"
#include "kernels/common/rounding.h"

namespace tokline::testing {
namespace {

constexpr DeviceFacts kDevice = testing::kH200;

int32_t LaneOf(const ChunkDecodePlan& plan, size_t task) {
  const auto next = std::ranges::upper_bound(plan.LaneTaskIndptr(), static_cast<int32_t>(task));
  return static_cast<int32_t>(next - plan.LaneTaskIndptr().begin()) - 1;
}

// Checks that the lanes of a cluster all end, or all do not end, with a clustered task of the same
// member: its barriers hang otherwise. Their other tasks are of sequences without KV.
void CheckClusters(const ChunkDecodePlan& plan) {
  ASSERT_EQ(plan.size.grid.num_lanes % plan.size.grid.cluster_lanes, 0);
  for (const ChunkDecodeTask& task : plan.Tasks()) {
    if (plan.size.grid.cluster_lanes == 1) {
      EXPECT_EQ(task.clustered, 0);
      continue;
    }
    ASSERT_EQ(task.member_count, 1);
    EXPECT_EQ(plan.Members()[task.member_begin].partial, -1);
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

// Checks that a plan reads every (sequence, listed chunk, token) exactly once, with the right
// shift, in tasks that the kernel can run, and that partial states add up.
void CheckPlan(const ChunkTableView& table, const PagedKvLayout& layout, int32_t num_q_heads,
               const ChunkDecodePlan& plan) {
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // seq, page_begin, token, shift
  std::map<Key, int> expected, actual;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      for (int32_t t = 0; t < table.chunk_lengths[chunk]; ++t) {
        ++expected[{s, table.chunk_page_indptr[chunk], t, table.seq_shifts[i]}];
      }
    }
  }
  std::map<int32_t, std::vector<int32_t>> partials;  // by sequence
  std::vector<int> states(static_cast<size_t>(table.num_seqs), 0);
  ASSERT_EQ(plan.LaneTaskIndptr().size(), static_cast<size_t>(plan.size.grid.num_lanes) + 1);
  ASSERT_EQ(plan.LaneTaskIndptr().back(), static_cast<int32_t>(plan.Tasks().size()));
  const int32_t group = num_q_heads / layout.num_kv_heads;
  CheckClusters(plan);
  for (size_t i = 0; i < plan.Tasks().size(); ++i) {
    const ChunkDecodeTask& task = plan.Tasks()[i];
    // The tasks of a cluster make one state.
    const bool makes_state = !task.clustered || LaneOf(plan, i) % plan.size.grid.cluster_lanes == 0;
    ASSERT_GE(task.member_count, 1);
    ASSERT_LE(task.member_count * group, kChunkDecodeMaxRows);
    const auto fields = [](const ChunkDecodeMember& m) {
      return std::array{m.seq, m.shift, m.partial};
    };
    const ChunkDecodeMember& first = plan.Members()[task.member_begin];
    ASSERT_EQ(fields(task.first_member), fields(first));
    ASSERT_EQ(task.first_states,
              plan.SeqPartialIndptr()[first.seq + 1] - plan.SeqPartialIndptr()[first.seq]);
    if (task.range_begin < task.range_end) {
      const ChunkDecodeRange &range = plan.Ranges()[task.range_begin], &copy = task.first_range;
      ASSERT_EQ((std::array{range.page_begin, range.token_begin, range.token_end}),
                (std::array{copy.page_begin, copy.token_begin, copy.token_end}));
    }
    for (int32_t m = task.member_begin; m < task.member_begin + task.member_count; ++m) {
      const ChunkDecodeMember& member = plan.Members()[m];
      states[static_cast<size_t>(member.seq)] += makes_state;
      if (member.partial >= 0 && makes_state) partials[member.seq].push_back(member.partial);
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.Ranges()[r];
        ASSERT_EQ(range.token_begin % kChunkDecodeTileTokens, 0);
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
    if (states[s] == 1) {
      EXPECT_TRUE(list.empty());
      EXPECT_EQ(plan.SeqPartialIndptr()[s], plan.SeqPartialIndptr()[s + 1]);
      continue;
    }
    std::vector<int32_t> all(static_cast<size_t>(states[s]));
    std::iota(all.begin(), all.end(), plan.SeqPartialIndptr()[s]);
    EXPECT_EQ(list, all) << "sequence " << s;
    EXPECT_EQ(plan.SeqPartialIndptr()[s + 1] - plan.SeqPartialIndptr()[s], states[s]);
  }
  EXPECT_EQ(plan.num_partials, plan.SeqPartialIndptr().back());
}

TEST(ChunkDecodePlanTest, RandomTablesAreCoveredExactlyOnce) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 200; ++round) {
    DecodeCaseOptions options;
    options.num_kv_heads = 1 + static_cast<int32_t>(rng() % 8);
    options.group = 1 + static_cast<int32_t>(rng() % 16);
    options.page_size = 16 << rng() % 5;
    const int32_t num_chunks = 1 + static_cast<int32_t>(rng() % 6);
    for (int32_t c = 0; c < num_chunks; ++c) {
      options.chunk_lengths.push_back(static_cast<int32_t>(rng() % 4 == 0 ? 0 : rng() % 700));
    }
    const size_t num_seqs = rng() % 9;
    for (size_t s = 0; s < num_seqs; ++s) {
      std::vector<int32_t> chunks, shifts;
      for (size_t i = rng() % 4; i > 0; --i) {
        chunks.push_back(static_cast<int32_t>(rng() % num_chunks));
        shifts.push_back(static_cast<int32_t>(rng() % 3) - 1);
      }
      options.sequences.push_back(chunks);
      options.shifts.push_back(shifts);
    }
    ChunkTable table;
    PagedKvLayout layout{.num_pages = 10000,
                         .num_kv_heads = options.num_kv_heads,
                         .page_size = options.page_size,
                         .head_dim = 64};
    int32_t page = 0;
    for (int32_t length : options.chunk_lengths) {
      std::vector<int32_t> pages((length + options.page_size - 1) / options.page_size);
      std::iota(pages.begin(), pages.end(), page);
      page += static_cast<int32_t>(pages.size());
      table.AddChunk(pages, length);
    }
    for (size_t s = 0; s < num_seqs; ++s)
      table.AddSequence(options.sequences[s], options.shifts[s]);
    Validate(table.View(), layout);
    const auto runs = SharedRunsOfTable(table.View(), options.group, ChunkSharing::kAlways);
    for (const ChunkSharing sharing : {ChunkSharing::kNever, ChunkSharing::kAlways}) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        SCOPED_TRACE(StrCat("round ", round, " sharing ", static_cast<int>(sharing)));
        const ChunkDecodePlan plan =
            PlanChunkDecode(table.View(), layout, options.num_kv_heads * options.group, kDevice,
                            {.runs = runs,
                             .sharing = sharing,
                             .grid = {.num_lanes = static_cast<int32_t>(rng() % 40)}});
        CheckPlan(table.View(), layout, options.num_kv_heads * options.group, plan);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

TEST(ChunkDecodePlanTest, LanesReadEqualShares) {
  ChunkTable table;
  const PagedKvLayout layout{
      .num_pages = 4096, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  std::mt19937_64 rng(3);
  std::vector<int32_t> pages(16, 0);
  for (int32_t s = 0; s < 128; ++s) {
    const int32_t chunk = table.AddChunk(pages, 100 + static_cast<int32_t>(rng() % 3900));
    table.AddSequence({&chunk, 1});
  }
  const ChunkDecodePlan plan = PlanChunkDecode(table.View(), layout, 16, kDevice);
  EXPECT_EQ(plan.size.grid.num_lanes, 2 * 132 / 8);
  int64_t least = INT64_MAX, most = 0;
  for (int32_t lane = 0; lane < plan.size.grid.num_lanes; ++lane) {
    int64_t tiles = 0;
    for (int32_t t = plan.LaneTaskIndptr()[lane]; t < plan.LaneTaskIndptr()[lane + 1]; ++t) {
      for (int32_t r = plan.Tasks()[t].range_begin; r < plan.Tasks()[t].range_end; ++r) {
        tiles += (plan.Ranges()[r].token_end - plan.Ranges()[r].token_begin + 63) / 64;
      }
    }
    least = std::min(least, tiles);
    most = std::max(most, tiles);
  }
  EXPECT_LE(most - least, 1);
  EXPECT_LE(plan.num_partials, 128 + plan.size.grid.num_lanes);
}

TEST(ChunkDecodePlanTest, FewShortSequencesGetAClusterEach) {
  const PagedKvLayout layout{
      .num_pages = 4096, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  const auto plan_of = [&](const std::vector<int32_t>& lengths, const DeviceFacts& device) {
    ChunkTable table;
    for (const int32_t length : lengths) {
      const std::vector<int32_t> pages(static_cast<size_t>((length + 255) / 256), 0);
      const int32_t chunk = table.AddChunk(pages, length);
      table.AddSequence({&chunk, 1});
    }
    return PlanChunkDecode(table.View(), layout, 16, device);
  };
  const auto longest_lane = [](const ChunkDecodePlan& plan) {
    int32_t longest = 0;
    for (int32_t lane = 0; lane < plan.size.grid.num_lanes; ++lane) {
      int32_t tiles = 0;
      for (int32_t t = plan.LaneTaskIndptr()[lane]; t < plan.LaneTaskIndptr()[lane + 1]; ++t) {
        for (int32_t r = plan.Tasks()[t].range_begin; r < plan.Tasks()[t].range_end; ++r) {
          tiles += (plan.Ranges()[r].token_end - plan.Ranges()[r].token_begin + 63) / 64;
        }
      }
      longest = std::max(longest, tiles);
    }
    return longest;
  };
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, kDevice);
  EXPECT_EQ(full, (ChunkDecodeGrid{.num_lanes = 33, .cluster_lanes = 1}));
  struct Expected {
    std::vector<int32_t> lengths;
    ChunkDecodeGrid grid;
    int32_t longest_lane;
  };
  for (const Expected& expected :
       std::vector<Expected>{{{64}, full, 1},  // one tile: nothing to share
                             {{65}, {8, 8}, 1},
                             {{300}, {8, 8}, 1},
                             {{2048}, {8, 8}, 4},
                             {{2049}, full, 1},
                             {{192, 1000}, {16, 8}, 2},
                             {{192, 192, 100, 64}, {16, 4}, 1},
                             {{192, 192, 0, 64, 256, 1, 512, 200}, {16, 2}, 4},
                             {{192, 192, 0, 64, 256, 1, 513, 200}, full, 4},
                             {std::vector<int32_t>(17, 300), full, 3}}) {
    const ChunkDecodePlan plan = plan_of(expected.lengths, kDevice);
    EXPECT_EQ(plan.size.grid, expected.grid)
        << expected.lengths.size() << " of " << expected.lengths[0];
    EXPECT_EQ(longest_lane(plan), expected.longest_lane) << expected.lengths[0];
    EXPECT_TRUE(plan.size.grid.cluster_lanes == 1 || plan.num_partials == 0);
  }
  // A lane each, uncut, although there are more tiles than lanes.
  std::vector<int32_t> ragged(30, 200);
  for (const size_t i : {6, 8, 9, 10, 11, 26}) ragged[i] = 50;
  EXPECT_EQ(plan_of(ragged, kDevice).num_partials, 0);
  EXPECT_EQ(longest_lane(plan_of(ragged, kDevice)), 4);
  EXPECT_EQ(plan_of(std::vector<int32_t>(20, 200), kDevice).num_partials, 0);
  EXPECT_GT(plan_of(std::vector<int32_t>(20, 300), kDevice).num_partials, 0);
}

TEST(ChunkDecodePlanTest, EveryPlanFitsEveryDeviceAndItsCode) {
  bool any_cluster = false;
  for (const NamedDevice& device : Devices()) {
    for (const int32_t head_dim : {64, 128}) {
      EXPECT_LE(ChunkDecodeBlockBytes(head_dim), device.facts.shared_bytes_per_block)
          << ::testing::PrintToString(device) << ", head_dim " << head_dim;
    }
    for (const int32_t num_kv_heads : {1, 2, 8, 32}) {
      for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
               {300}, {2048}, {5, 1000}, {0}, {192, 192, 0, 64}, std::vector<int32_t>(40, 700)}) {
        const PagedKvLayout layout{
            .num_pages = 64, .num_kv_heads = num_kv_heads, .page_size = 64, .head_dim = 128};
        ChunkTable table;
        for (const int32_t length : lengths) {
          const std::vector<int32_t> pages(static_cast<size_t>((length + 63) / 64), 0);
          const int32_t chunk = table.AddChunk(pages, length);
          table.AddSequence({&chunk, 1});
        }
        const ChunkDecodePlan plan =
            PlanChunkDecode(table.View(), layout, 2 * num_kv_heads, device.facts);
        SCOPED_TRACE(StrCat(::testing::PrintToString(device), ", ", num_kv_heads, " KV heads, ",
                            lengths.size(), " of ", lengths[0]));
        CheckPlan(table.View(), layout, 2 * num_kv_heads, plan);
        CheckClusters(plan);
        EXPECT_LE(plan.num_partials, std::ssize(lengths) + plan.size.grid.num_lanes);
        if (plan.size.grid.cluster_lanes == 1) continue;
        any_cluster = true;
        EXPECT_GE(device.facts.compute_major, 9);
        EXPECT_GE(device.facts.code_architecture, 90) << "its code has no cluster instructions";
        // Every cluster runs at once: its blocks meet at barriers.
        EXPECT_LE(int64_t{plan.size.grid.num_lanes} * num_kv_heads, device.facts.sm_count);
      }
    }
  }
  EXPECT_TRUE(any_cluster);
}

TEST(ChunkDecodePlanTest, ClustersAreRefusedWhereTheCodeHasNone) {
  const PagedKvLayout layout{.num_pages = 8, .num_kv_heads = 2, .page_size = 64, .head_dim = 128};
  ChunkTable table;
  const std::vector<int32_t> pages{0, 1};
  const int32_t chunk = table.AddChunk(pages, 100);
  table.AddSequence({&chunk, 1});
  DeviceFacts facts = kDevice;
  facts.code_architecture = 80;  // as PTX of compute_80 on an H200
  facts.code_is_sm90a = false;
  const ChunkDecodePlanOptions options{.grid = {.num_lanes = 8, .cluster_lanes = 8}};
  EXPECT_NO_THROW(PlanChunkDecode(table.View(), layout, 4, kDevice, options));
  try {
    PlanChunkDecode(table.View(), layout, 4, facts, options);
    FAIL() << "clusters were planned for code without them";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "grid has clusters of 8 lanes; they need compute capability 9.0 and code compiled "
                 "for it, here 9.0 and code for 8.0");
  }
}

TEST(ChunkDecodePlanTest, EqualLengthsAreCutEvenly) {
  const PagedKvLayout layout{
      .num_pages = 4096, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  const std::vector<int32_t> pages(32, 0);
  // Of 33 lanes: 2 to a sequence, 1 to a sequence, a lane to 4 of them; 20 leave no even number.
  for (const auto& [num_seqs, partials] :
       std::vector<std::pair<int32_t, int32_t>>{{16, 32}, {32, 0}, {128, 0}, {20, 52}}) {
    ChunkTable table;
    for (int32_t s = 0; s < num_seqs; ++s) {
      const int32_t chunk = table.AddChunk(pages, 8192);
      table.AddSequence({&chunk, 1});
    }
    EXPECT_EQ(PlanChunkDecode(table.View(), layout, 64, kDevice).num_partials, partials)
        << num_seqs;
  }
}

TEST(ChunkDecodePlanTest, ClustersTakeOneSegmentASequence) {
  const PagedKvLayout layout{.num_pages = 64, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  ChunkTable table;
  const std::vector<int32_t> pages{0, 1};
  const std::vector<int32_t> chunks{table.AddChunk(pages, 300), table.AddChunk(pages, 200)};
  table.AddSequence(chunks);
  EXPECT_EQ(PlanChunkDecode(table.View(), layout, 16, kDevice).size.grid.cluster_lanes, 8);
  const std::vector<int32_t> shifts{0, 5};
  table.AddSequence(chunks, shifts);
  EXPECT_EQ(PlanChunkDecode(table.View(), layout, 16, kDevice).size.grid,
            ChunkDecodeFullGrid(layout, kDevice));
  EXPECT_THROW(PlanChunkDecode(table.View(), layout, 16, kDevice,
                               {.grid = {.num_lanes = 16, .cluster_lanes = 8}}),
               InvalidArgument);
  EXPECT_THROW(PlanChunkDecode(table.View(), layout, 16, kDevice,
                               {.grid = {.num_lanes = 9, .cluster_lanes = 8}}),
               InvalidArgument);
}

TEST(ChunkDecodePlanTest, ClustersShareNothing) {
  const PagedKvLayout layout{.num_pages = 64, .num_kv_heads = 2, .page_size = 256, .head_dim = 128};
  ChunkTable table;
  const int32_t shared = table.AddChunk(std::vector<int32_t>{0}, 200);
  for (int32_t s = 0; s < 2; ++s) {
    const int32_t own = table.AddChunk(std::vector<int32_t>{1 + s}, 50);
    table.AddSequence(std::vector<int32_t>{shared, own});
  }
  for (int i = 0; i < 2; ++i) table.AddSequence({});
  const ChunkDecodeGrid clusters{.num_lanes = 32, .cluster_lanes = 8};
  const auto plan_of = [&](int32_t num_q_heads, const ChunkDecodeGrid& grid) {
    const auto runs = SharedRunsOfTable(table.View(), num_q_heads / 2, ChunkSharing::kAlways);
    EXPECT_EQ(runs.size(), 1u);
    const ChunkDecodePlan plan =
        PlanChunkDecode(table.View(), layout, num_q_heads, kDevice,
                        {.runs = runs, .sharing = ChunkSharing::kAlways, .grid = grid});
    CheckPlan(table.View(), layout, num_q_heads, plan);
    return plan;
  };
  EXPECT_TRUE(plan_of(16, {}).reads_once);
  EXPECT_EQ(plan_of(16, {}).size.grid, ChunkDecodeFullGrid(layout, kDevice));
  EXPECT_FALSE(plan_of(16, clusters).reads_once);
  // With 16 heads per group a tile of rows holds one member: both would read the chunk in any case.
  EXPECT_FALSE(plan_of(32, {}).reads_once);
  EXPECT_EQ(plan_of(32, {}).size.grid, clusters);
  EXPECT_FALSE(plan_of(32, ChunkDecodeFullGrid(layout, kDevice)).reads_once);
}

TEST(ChunkDecodePlanTest, SharedChunkIsReadOncePerRowTile) {
  ChunkTable table;
  const PagedKvLayout layout{.num_pages = 64, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  const std::vector<int32_t> pages{0, 1, 2, 3};
  const int32_t shared = table.AddChunk(pages, 1024);
  for (int32_t s = 0; s < 32; ++s) {
    const std::vector<int32_t> own_pages{4 + s};
    const std::vector<int32_t> chunks{shared, table.AddChunk(own_pages, 128)};
    table.AddSequence(chunks);
  }
  const auto tokens_read = [](const ChunkDecodePlan& plan) {
    int64_t tokens = 0;
    for (const ChunkDecodeRange& range : plan.Ranges())
      tokens += range.token_end - range.token_begin;
    return tokens;
  };
  // 4 heads per group: 16 members fill 64 rows, so 32 members read the chunk twice.
  const auto runs = SharedRunsOfTable(table.View(), 4);
  const ChunkDecodePlan plan = PlanChunkDecode(table.View(), layout, 32, kDevice, {.runs = runs});
  EXPECT_TRUE(plan.reads_once);
  EXPECT_EQ(tokens_read(plan), 2 * 1024 + 32 * 128);
  EXPECT_EQ(SharedTokensSaved(runs, 4), 30 * 1024);
  for (const ChunkDecodePlan& alone :
       {PlanChunkDecode(table.View(), layout, 32, kDevice),
        PlanChunkDecode(table.View(), layout, 32, kDevice,
                        {.runs = runs, .sharing = ChunkSharing::kNever})}) {
    EXPECT_FALSE(alone.reads_once);
    EXPECT_EQ(tokens_read(alone), 32 * (1024 + 128));
  }
  // Where a plan that reads once has no room, the same table is read alone.
  ChunkDecodePlanRoom room = plan.size;
  --room.members;
  room.ranges = 1000;
  EXPECT_FALSE(PlanChunkDecode(table.View(), layout, 32, kDevice,
                               {.runs = runs, .grid = room.grid, .room = &room})
                   .reads_once);
}

// FNV-1a over every number of a plan.
void AddToHash(const ChunkDecodePlan& plan, uint64_t& hash) {
  const auto add = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211ull;
  };
  for (const int32_t value : {static_cast<int32_t>(plan.size.num_seqs), plan.size.grid.num_lanes,
                              plan.size.grid.cluster_lanes, plan.num_partials}) {
    add(value);
  }
  for (const int32_t value : plan.LaneTaskIndptr()) add(value);
  for (const ChunkDecodeTask& task : plan.Tasks()) {
    for (const int32_t value :
         {task.member_begin, task.member_count, task.range_begin, task.range_end, task.clustered}) {
      add(value);
    }
  }
  for (const ChunkDecodeRange& range : plan.Ranges()) {
    for (const int32_t value : {range.page_begin, range.token_begin, range.token_end}) add(value);
  }
  for (const ChunkDecodeMember& member : plan.Members()) {
    for (const int32_t value : {member.seq, member.shift, member.partial}) add(value);
  }
  for (const int32_t value : plan.SeqPartialIndptr()) add(value);
}

// Of what was measured before chunks could be shared in a decoder, nothing may change.
TEST(ChunkDecodePlanTest, PlansWithoutSharedChunksAreAsTheyWere) {
  auto pick = [rng = std::mt19937_64(11)](uint64_t below) mutable {
    return static_cast<int32_t>(rng() % below);
  };
  uint64_t hash = 1469598103934665603ull;
  for (int round = 0; round < 400; ++round) {
    PagedKvLayout layout{.num_pages = 100000};
    layout.num_kv_heads = 1 << pick(5);
    layout.page_size = 16 << pick(5);
    layout.head_dim = pick(2) != 0 ? 128 : 64;
    const int32_t num_q_heads = layout.num_kv_heads * (1 + pick(16));
    const int32_t num_seqs = pick(round % 4 == 0 ? 200 : 12);
    const int32_t equal = pick(3) == 0 ? 1 + pick(3000) : 0;
    ChunkTable table;
    for (int32_t s = 0; s < num_seqs; ++s) {
      std::vector<int32_t> chunks;
      const int32_t count = equal > 0 ? 1 : pick(4);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t length = equal > 0 ? equal : pick(5) == 0 ? 0 : pick(1500);
        const std::vector<int32_t> pages(
            static_cast<size_t>((length + layout.page_size - 1) / layout.page_size), s);
        chunks.push_back(table.AddChunk(pages, length));
      }
      table.AddSequence(chunks);
    }
    const auto runs = SharedRunsOfTable(table.View(), num_q_heads / layout.num_kv_heads);
    for (const ChunkSharing sharing : {ChunkSharing::kNever, ChunkSharing::kWhenItPays}) {
      for (const ChunkDecodeGrid& grid :
           {ChunkDecodeGrid{}, ChunkDecodeFullGrid(layout, kDevice)}) {
        AddToHash(PlanChunkDecode(table.View(), layout, num_q_heads, kDevice,
                                  {.runs = runs, .sharing = sharing, .grid = grid}),
                  hash);
      }
    }
  }
  EXPECT_EQ(hash, 10074577647383744685ull);
}

TEST(ChunkDecodePlanTest, PlanIsCopiedIntoALargerRoomAndRefusedByASmallerOne) {
  const PagedKvLayout layout{.num_pages = 64, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  ChunkTable table;
  for (const int32_t length : {3000, 0, 77, 5000, 900}) {
    const std::vector<int32_t> pages(static_cast<size_t>(DivideUp(length, 256)), 0);
    const int32_t chunk = table.AddChunk(pages, length);
    table.AddSequence({&chunk, 1});
  }
  const ChunkDecodePlan plan = PlanChunkDecode(table.View(), layout, 16, kDevice);
  ASSERT_EQ(std::ssize(plan.block), plan.size.Bytes());
  ChunkDecodePlanRoom room = plan.size;
  room.tasks += 100;
  room.ranges += 7;
  room.members += 300;
  room.num_seqs += 90;
  constexpr std::byte kGarbage{0xab};
  std::vector<std::byte> block(static_cast<size_t>(room.Bytes()) + 4096, kGarbage);
  plan.CopyTo(room, block.data());
  EXPECT_TRUE(std::all_of(block.begin() + room.Bytes(), block.end(),
                          [](std::byte b) { return b == kGarbage; }));
  const ChunkDecodePlanView copy = room.View(block.data());
  const auto same = [](const auto& array, const auto* copied) {
    return std::memcmp(array.data(), copied, array.size_bytes()) == 0;
  };
  EXPECT_EQ(copy.grid, plan.size.grid);
  EXPECT_TRUE(same(plan.LaneTaskIndptr(), copy.lane_task_indptr));
  EXPECT_TRUE(same(plan.Tasks(), copy.tasks));
  EXPECT_TRUE(same(plan.Ranges(), copy.ranges));
  EXPECT_TRUE(same(plan.Members(), copy.members));
  EXPECT_TRUE(same(plan.SeqPartialIndptr(), copy.seq_partial_indptr));
  for (int64_t ChunkDecodePlanRoom::*count :
       {&ChunkDecodePlanRoom::num_seqs, &ChunkDecodePlanRoom::tasks, &ChunkDecodePlanRoom::ranges,
        &ChunkDecodePlanRoom::members}) {
    ChunkDecodePlanRoom small = plan.size;
    EXPECT_NO_THROW(plan.CopyTo(small, block.data()));
    --(small.*count);
    EXPECT_THROW(plan.CopyTo(small, block.data()), InvalidArgument);
  }
  room = plan.size;
  --room.tasks;
  try {
    plan.CopyTo(room, block.data());
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    const auto tasks = [](int64_t count) { return StrCat(count, " tasks"); };
    EXPECT_NE(std::string(error.what()).find(tasks(plan.size.tasks)), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(tasks(room.tasks)), std::string::npos);
  }
  room = plan.size;
  ++room.grid.num_lanes;
  EXPECT_THROW(plan.CopyTo(room, block.data()), InvalidArgument);
}

// Sequences whose contexts begin with chunks of whole tiles that form a tree, as prompts branch.
ChunkTable RandomTree(std::mt19937_64& rng, int32_t page_size) {
  const auto upto = [&rng](int32_t n) { return 1 + static_cast<int32_t>(rng() % n); };
  const int32_t num_seqs = 1 + upto(64), depth = upto(4), branches = upto(3), tiles = upto(64);
  ChunkTable table;
  const auto add_chunk = [&](int32_t length) {
    return table.AddChunk(std::vector<int32_t>(static_cast<size_t>(DivideUp(length, page_size)), 0),
                          length);
  };
  std::map<std::vector<int32_t>, int32_t> chunk_after;  // by the branches taken
  for (int32_t s = 0; s < num_seqs; ++s) {
    std::vector<int32_t> taken, chunks;
    for (int32_t level = 0; level < depth; ++level) {
      taken.push_back(upto(4) == 1 ? upto(branches) : 0);
      const auto [at, is_new] = chunk_after.try_emplace(taken, 0);
      if (is_new) at->second = add_chunk(64 * upto(tiles));
      chunks.push_back(at->second);
    }
    chunks.push_back(add_chunk(upto(3 * page_size)));
    table.AddSequence(chunks);
  }
  return table;
}

// By the model's own figures: reading once, if it is chosen, ends before reading alone, where all
// that others have read comes from the L2.
TEST(ChunkDecodePlanTest, PlanThatReadsOnceIsNeverTheSlowerOne) {
  constexpr ChunkDecodeTimes kTimes;
  std::mt19937_64 rng(7);
  int chosen = 0, left = 0;
  for (int round = 0; round < 800; ++round) {
    const PagedKvLayout layout{.num_pages = 1 << 16,
                               .num_kv_heads = 1 << rng() % 5,
                               .page_size = 16 << 2 * (rng() % 3),
                               .head_dim = 128};
    const int32_t group = 1 + static_cast<int32_t>(rng() % 16);
    const ChunkTable tree = RandomTree(rng, layout.page_size);
    const ChunkTableView table = tree.View();
    const auto runs = SharedRunsOfTable(table, group);
    const ChunkDecodeGrid grid = ChunkDecodeFullGrid(layout, kDevice);
    const auto plan_of = [&](ChunkSharing sharing) {
      return PlanChunkDecode(table, layout, layout.num_kv_heads * group, kDevice,
                             {.runs = runs, .sharing = sharing, .grid = grid});
    };
    const ChunkDecodePlan plan = plan_of(ChunkSharing::kWhenItPays);
    left += !plan.reads_once && !runs.empty();
    if (!plan.reads_once) continue;
    ++chosen;
    // Listings of a run beyond the first find it in the L2.
    double tiles = 0, cached = 0;
    std::vector<bool> in_run(static_cast<size_t>(table.num_chunks), false), listed = in_run;
    for (const SharedRun& run : runs) {
      for (const int32_t chunk : run.chunks) in_run[static_cast<size_t>(chunk)] = true;
    }
    for (int32_t i = 0; i < table.seq_chunk_indptr[table.num_seqs]; ++i) {
      const auto chunk = static_cast<size_t>(table.seq_chunks[i]);
      const auto count = static_cast<double>(DivideUp(table.chunk_lengths[chunk], 64));
      tiles += count;
      if (in_run[chunk] && listed[chunk]) cached += count;
      listed[chunk] = true;
    }
    const double tile_us =
        kTimes.memory_tile_us + (kTimes.cached_tile_us - kTimes.memory_tile_us) * cached / tiles;
    EXPECT_LT(EstimateUs(plan, group, kTimes.memory_tile_us) + kTimes.least_gain_us,
              EstimateUs(plan_of(ChunkSharing::kNever), group, tile_us))
        << round;
  }
  EXPECT_GE(chosen, 60);
  EXPECT_GE(left, 20);
}

TEST(ChunkDecodePlanTest, LongRunsOfManyAreSharedAndRowsPackedByTheirTime) {
  EXPECT_TRUE(SharingPays(64, 256, 4));
  EXPECT_TRUE(SharingPays(2, 8, 2));
  EXPECT_FALSE(SharingPays(2, 2, 2));
  EXPECT_FALSE(SharingPays(1, 1000, 2));
  EXPECT_FALSE(SharingPays(3, 1000, 16));  // one tile of rows each, whoever reads
  for (int32_t group = 1; group <= 16; ++group) {
    for (int32_t members = 1; members <= 200; ++members) {
      int32_t parts = 0;
      for (int32_t left = members; left > 0; ++parts) {
        const int32_t part = SharedPartMembers(left, group);
        ASSERT_GE(part, 1);
        ASSERT_LE(part * group, kChunkDecodeMaxRows);
        left -= part;
      }
      ASSERT_EQ(parts, NumSharedParts(members, group));
      for (int64_t tiles : {1, 3, 10, 100}) {  // what pays once pays for longer
        ASSERT_LE(SharingPays(members, tiles, group), SharingPays(members, tiles + 1, group));
      }
    }
  }
  EXPECT_EQ(NumSharedParts(24, 2), 3);  // of 16 rows
  EXPECT_EQ(NumSharedParts(25, 2), 1);  // of 50
  EXPECT_EQ(NumSharedParts(32, 4), 2);  // of 64
}

ChunkDecodeParams ValidParams(DecodeCase& decode, HostTensor& out, std::vector<float>& lse) {
  out = HostTensor(decode.options.dtype, decode.q.size());
  lse.resize(static_cast<size_t>(decode.Rows()));
  return decode.Params(out, lse);
}

TEST(ChunkDecodeTest, ValidateStatesValuesAndWhatIsAllowed) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {40}));
  HostTensor out(DType::kBf16, 0);
  std::vector<float> lse;
  const ChunkDecodeParams good = ValidParams(decode, out, lse);
  EXPECT_NO_THROW(Validate(good));
  const auto message = [&](auto&& change) -> std::string {
    ChunkDecodeParams params = good;
    change(params);
    try {
      Validate(params);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([](auto& p) { p.num_q_heads = 7; }),
            "num_q_heads is 7; it must be 1 to 16 times num_kv_heads, which is 2");
  EXPECT_EQ(message([](auto& p) { p.num_q_heads = 34; }),
            "num_q_heads is 34; it must be 1 to 16 times num_kv_heads, which is 2");
  EXPECT_EQ(message([](auto& p) { p.layout.head_dim = 96; }),
            "head_dim is 96; supported are 64 and 128");
  EXPECT_EQ(message([](auto& p) { p.layout.page_size = 48; }),
            "page_size is 48; it must be a power of two from 16");
  EXPECT_EQ(message([](auto& p) { p.scale = -1; }), "scale is -1; it must be > 0");
  EXPECT_NE(message([](auto& p) { p.q_stride = 1028; }).find("q_stride is 1028"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) { p.out_stride = 8; }).find("out_stride is 8"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.rope_rows = 4; }).find("rope_rows is 4"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.q = static_cast<const char*>(p.q) + 2; }).find("16 B aligned"),
            std::string::npos);
}

TEST(ChunkDecodeTest, TableWithAPageOutsideThePoolIsRefused) {
  ChunkTable table;
  const std::vector<int32_t> pages{3, 8};
  table.AddChunk(pages, 20);
  const PagedKvLayout layout{.num_pages = 8, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
  try {
    Validate(table.View(), layout);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "chunk 0 lists page 8; the pool has pages 0 to 7");
  }
}

TEST(ChunkDecodeTest, CostMatchesBruteForceCount) {
  DecodeCaseOptions options;
  options.chunk_lengths = {100, 37, 0, 64};
  options.sequences = {{0, 1}, {0, 3}, {}, {2}};
  DecodeCase decode = MakeDecodeCase(options);
  HostTensor out(DType::kBf16, 0);
  std::vector<float> lse;
  const ChunkDecodeParams params = ValidParams(decode, out, lse);
  // Count element by element what the definition touches.
  std::set<int64_t> kv_elements;
  double flops = 0;
  const ChunkTableView table = params.table;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t h = 0; h < params.num_q_heads; ++h) {
      for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
        const int32_t c = table.seq_chunks[i];
        for (int32_t t = 0; t < table.chunk_lengths[c]; ++t) {
          const int64_t page = table.chunk_pages[table.chunk_page_indptr[c] + t / 16];
          for (int32_t d = 0; d < 128; ++d) {
            kv_elements.insert(decode.layout.KeyOffset(page, h / 4, t % 16) + d);
            kv_elements.insert(decode.layout.ValueOffset(page, h / 4, t % 16) + d);
            flops += 4;
          }
        }
      }
    }
  }
  const Cost cost = CostOf(params);
  EXPECT_EQ(cost.flops, flops);
  EXPECT_EQ(cost.read_bytes, 2.0 * static_cast<double>(kv_elements.size()) + 2 * 4 * 8 * 128);
  EXPECT_EQ(cost.write_bytes, 2 * 4 * 8 * 128 + 4 * 4 * 8);
}

TEST(ChunkDecodeReferenceTest, UniformScoresGiveTheMeanExactly) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {64, 16, 0}));
  decode.q = HostTensor(DType::kBf16, decode.q.size());  // zero queries: equal scores
  ForEachToken(decode, [&](int32_t, int32_t token, int64_t page, int32_t row) {
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t d = 0; d < 128; ++d) {
        decode.kv.Set(decode.layout.ValueOffset(page, h, row) + d, token + d % 4);
      }
    }
  });
  const DecodeResult result = RunReference(decode);
  for (int64_t i = 0; i < 8 * 128; ++i) {
    EXPECT_EQ(result.out[i], RoundTo(DType::kBf16, 31.5 + i % 4));
    EXPECT_EQ(result.out[8 * 128 + i], 7.5 + i % 4);
    EXPECT_EQ(result.out[2 * 8 * 128 + i], 0);  // an empty sequence
  }
  EXPECT_NEAR(result.lse[0], std::log(64.0), 1e-6);
  EXPECT_EQ(result.lse[16], -std::numeric_limits<float>::infinity());
}

TEST(ChunkDecodeReferenceTest, ChunkingDoesNotChangeTheResult) {
  DecodeCaseOptions options;
  options.dtype = DType::kF32;
  options.page_size = 16;
  DecodeCase whole = MakeDecodeCase(WithLengths(options, {96}));
  // The same pages as three chunks of 32 tokens.
  DecodeCase parts = whole;
  parts.table.Clear();
  std::vector<int32_t> ids;
  for (int32_t c = 0; c < 3; ++c) {
    ids.push_back(parts.table.AddChunk({whole.table.View().chunk_pages + c * 2, 2}, 32));
  }
  parts.table.AddSequence(ids);
  const DecodeResult a = RunReference(whole), b = RunReference(parts);
  EXPECT_TRUE(WithinBound(
      a.out, b.out, a.out.size(), [](int64_t) { return 1e-6; }, 1));
}

TEST(ChunkDecodeReferenceTest, ShiftEqualsRotatedKeys) {
  DecodeCaseOptions options;
  options.dtype = DType::kF32;
  options.chunk_lengths = {30, 20};
  options.sequences = {{0, 1}};
  options.shifts = {{5, -3}};
  DecodeCase shifted = MakeDecodeCase(options);
  DecodeCase rotated = shifted;
  rotated.table.Clear();
  const ChunkTableView view = shifted.table.View();
  std::vector<int32_t> ids;
  for (int32_t c = 0; c < 2; ++c) {
    const int32_t begin = view.chunk_page_indptr[c];
    ids.push_back(rotated.table.AddChunk(
        {view.chunk_pages + begin, static_cast<size_t>(view.chunk_page_indptr[c + 1] - begin)},
        view.chunk_lengths[c]));
  }
  rotated.table.AddSequence(ids);
  ForEachToken(shifted, [&](int32_t chunk, int32_t, int64_t page, int32_t row) {
    const int32_t shift = chunk == 0 ? 5 : -3;
    for (int32_t h = 0; h < 2; ++h) {
      const int64_t at = shifted.layout.KeyOffset(page, h, row);
      for (int32_t i = 0; i < 64; ++i) {
        const double angle = shift * std::pow(1e4, -2.0 * i / 128);
        const double x = shifted.kv[at + i], y = shifted.kv[at + i + 64];
        rotated.kv.Set(at + i, x * std::cos(angle) - y * std::sin(angle));
        rotated.kv.Set(at + i + 64, y * std::cos(angle) + x * std::sin(angle));
      }
    }
  });
  const DecodeResult a = RunReference(shifted), b = RunReference(rotated);
  EXPECT_TRUE(WithinBound(
      a.out, b.out, a.out.size(), [](int64_t) { return 2e-5; }, 1));
}

TEST(ChunkDecodeBoundTest, AReplacedTailOfALongContextIsRejected) {
  DecodeCaseOptions options;
  options.num_kv_heads = 1;
  options.group = 2;
  options.page_size = 256;
  options.nan_in_dead_slots = false;
  DecodeCase decode = MakeDecodeCase(WithLengths(options, {131072}));
  const DecodeResult expected = RunReference(decode);
  EXPECT_TRUE(MatchesReference(expected, expected, decode));
  DecodeCase wrong = decode;
  std::mt19937_64 rng(77);
  std::normal_distribution<double> normal(0, 1);
  ForEachToken(wrong, [&](int32_t, int32_t token, int64_t page, int32_t row) {
    if (token < 131072 - 2048) return;
    for (int32_t d = 0; d < options.head_dim; ++d) {
      wrong.kv.Set(wrong.layout.ValueOffset(page, 0, row) + d, normal(rng));
    }
  });
  const auto verdict = MatchesReference(RunReference(wrong), expected, decode);
  EXPECT_FALSE(verdict);
  EXPECT_NE(std::string(verdict.message()).find("root mean square"), std::string::npos)
      << verdict.message();
}

}  // namespace
}  // namespace tokline::testing
