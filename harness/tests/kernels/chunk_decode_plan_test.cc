// How the contexts of a step are cut among lanes.
#include <gmock/gmock.h>

#include <cstring>
#include <span>

#include "harness/tests/kernels/chunk_decode_plan_case.h"
#include "harness/tests/message_of.h"
#include "kernels/chunk_decode/chunk_decode_segments.h"
#include "kernels/chunk_decode/chunk_decode_times.h"

namespace tokline::testing {
namespace {

TEST(ChunkDecodePlanTest, RandomTablesAreCoveredExactlyOnce) {
  std::mt19937_64 rng(7);
  int by_run_lanes = 0;  // plans in which these read anything
  int with_parts = 0;    // plans in which clusters read parts of sequences
  for (int round = 0; round < 200; ++round) {
    DecodeCaseOptions options;
    options.num_kv_heads = 1 + static_cast<int32_t>(rng() % 8);
    options.group = 1 + static_cast<int32_t>(rng() % 16);
    options.page_size = 16 << rng() % 5;
    const int32_t run_lanes = static_cast<int32_t>(rng() % 3) * 3;
    const int32_t num_chunks = 1 + static_cast<int32_t>(rng() % 6);
    for (int32_t c = 0; c < num_chunks; ++c) {
      options.chunk_lengths.push_back(static_cast<int32_t>(rng() % 4 == 0 ? 0 : rng() % 700));
    }
    const size_t num_seqs = rng() % 9;
    for (size_t s = 0; s < num_seqs; ++s) {
      std::vector<int32_t> chunks, shifts;
      for (size_t i = rng() % 4; i > 0; --i) {
        chunks.push_back(static_cast<int32_t>(rng() % num_chunks));
        shifts.push_back(run_lanes > 0 ? 0 : static_cast<int32_t>(rng() % 3) - 1);
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
    const bool one_segment_each =
        OneSegmentEach(ChunkDecodeSegments(table.View(), options.group, runs, true).All());
    const int32_t num_q_heads = options.num_kv_heads * options.group;
    for (const ChunkSharing sharing : {ChunkSharing::kNever, ChunkSharing::kAlways}) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        SCOPED_TRACE(StrCat("round ", round, " sharing ", static_cast<int>(sharing)));
        const bool warps = run_lanes > 0 && repeat == 1;  // shifts leave several segments
        const int32_t num_lanes =
            static_cast<int32_t>(rng() % 40) / (warps ? 4 : 1) * (warps ? 4 : 1);
        ChunkDecodeChoice choice =
            ChooseChunkDecodeSharing(table.View(), runs, layout, num_q_heads, kDevice, sharing);
        if (num_lanes > 0) {
          choice = {
              .runs = {},
              .grid = {
                  .num_lanes = num_lanes, .block_lanes = warps ? 4 : 1, .run_lanes = run_lanes}};
          if (sharing == ChunkSharing::kAlways && (!warps || one_segment_each)) choice.runs = runs;
        }
        const ChunkDecodePlan plan =
            PlanChunkDecode(table.View(), layout, num_q_heads, kDevice, choice);
        CheckPlan(table.View(), layout, num_q_heads, plan);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
        const auto first_run_lane = static_cast<size_t>(plan.size.grid.num_lanes);
        by_run_lanes += plan.LaneTaskIndptr()[first_run_lane] < plan.LaneTaskIndptr().back();
      }
    }
    if (run_lanes == 0) continue;  // shifts leave several segments
    const auto cluster_lanes = static_cast<int32_t>(2 + rng() % 15);
    const auto clusters = static_cast<int32_t>(1 + num_seqs + rng() % 12);
    for (const bool takes_parts : {false, true}) {
      const ChunkDecodeGrid grid{.num_lanes = clusters * cluster_lanes,
                                 .cluster_lanes = cluster_lanes,
                                 .takes_parts = takes_parts};
      SCOPED_TRACE(StrCat("round ", round, ", ", grid));
      const ChunkDecodePlan plan =
          PlanChunkDecode(table.View(), layout, num_q_heads, kDevice, {.grid = grid});
      CheckPlan(table.View(), layout, num_q_heads, plan);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
      with_parts += plan.num_partials > 0;
    }
  }
  EXPECT_GE(by_run_lanes, 50);
  EXPECT_GE(with_parts, 50);
}

// Each chunk of a run begins a tile of a run lane, with empty chunks among them, and in runs that
// have no others.
TEST(ChunkDecodePlanTest, RunLanesReadTilesOfTheirOwn) {
  const PagedKvLayout layout{
      .num_pages = 10'000, .num_kv_heads = 8, .page_size = 128, .head_dim = 128};
  for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
           {50, 8192}, {900, 4096}, {64, 65, 1000, 63}, {0, 700}, {0}}) {
    for (const int32_t run_lanes : {1, 3, 16, 40}) {
      SCOPED_TRACE(StrCat(lengths[0], " tokens and ", lengths.size() - 1, " more chunks, ",
                          run_lanes, " run lanes"));
      ChunkTable table;
      SharedRun run;
      int32_t page = 0;
      for (const int32_t length : lengths) {
        std::vector<int32_t> pages(static_cast<size_t>(DivideUp(length, 128)));
        std::iota(pages.begin(), pages.end(), page);
        page += static_cast<int32_t>(pages.size());
        run.chunks.push_back(table.AddChunk(pages, length));
        run.tokens += length;
      }
      const std::vector<int32_t> shifts(lengths.size(), 0);
      for (int32_t s = 0; s < 40; ++s) {
        table.AddSequence(run.chunks, shifts);
        run.members.push_back({.seq = s});
      }
      const ChunkDecodePlan plan =
          PlanChunkDecode(table.View(), layout, 32, kDevice,
                          {.runs = {&run, 1}, .grid = {.num_lanes = 33, .run_lanes = run_lanes}});
      CheckPlan(table.View(), layout, 32, plan);
      EXPECT_EQ(ReadsOnce(plan), run.tokens > 0);
    }
  }
}

TEST(ChunkDecodePlanTest, LanesReadEqualShares) {
  std::vector<int32_t> lengths(40);
  std::mt19937_64 rng(3);
  for (int32_t& length : lengths) length = 100 + static_cast<int32_t>(rng() % 15900);
  const ChunkDecodePlan plan = PlanOf(lengths);
  EXPECT_EQ(plan.size.grid.num_lanes, 2 * 132 / 8);
  const std::vector<int64_t> tiles = LaneTiles(plan);
  const auto [least, most] = std::ranges::minmax(tiles);
  EXPECT_LE(most - least, 1);
  EXPECT_LE(plan.num_partials, 2 * 40 + plan.size.grid.num_lanes);
}

// Where warps take parts, those of long sequences are dealt among the short ones; the states of a
// sequence are as many as its parts.
TEST(ChunkDecodePlanTest, WarpsTakePartsOfWhatIsMuchLonger) {
  ChunkDecodeGrid grid = ChunkDecodeWarpGrid(kEightHeads, kDevice);
  grid.takes_parts = true;
  std::vector<int32_t> lengths(200, 20);
  lengths[150] = 1990;
  lengths[20] = 0;
  const ChunkDecodePlan plan = PlanOf(lengths);
  EXPECT_EQ(plan.size.grid, grid);
  const std::vector<int64_t> tiles = LaneTiles(plan);
  EXPECT_EQ(std::ranges::max(tiles), 3);  // of 32
  EXPECT_EQ(plan.num_partials, 11);
  EXPECT_EQ(plan.size.tasks, 199 + 11);
  // Not of equal ones, nor where one would leave too many states.
  EXPECT_EQ(PlanOf(std::vector<int32_t>(200, 640), kDevice, grid).num_partials, 0);
  lengths[150] = 100;
  EXPECT_EQ(PlanOf(lengths, kDevice, grid).num_partials, 0);
  EXPECT_THROW(PlanOf(lengths, kDevice, {.num_lanes = 33, .takes_parts = true}), InvalidArgument);
}

// Clusters are dealt so that no block has more tiles than it must; a sequence with several leaves
// as many states.
TEST(ChunkDecodePlanTest, ClustersTakePartsOfLongSequences) {
  const PagedKvLayout one_head{.num_pages = 1, .num_kv_heads = 1, .head_dim = 128};
  const ChunkDecodeGrid grid = ChunkDecodePartsGrid(4, one_head, 16, kDevice);
  EXPECT_EQ(grid, (ChunkDecodeGrid{.num_lanes = 224, .cluster_lanes = 16, .takes_parts = true}));
  const auto plan_of = [&](const std::vector<int32_t>& lengths) {
    ChunkTable table;
    for (const int32_t length : lengths) {
      const std::vector<int32_t> pages(static_cast<size_t>(one_head.Pages().PagesFor(length)), 0);
      const int32_t chunk = table.AddChunk(pages, length);
      table.AddSequence({&chunk, 1});
    }
    ChunkDecodePlan plan = PlanChunkDecode(table.View(), one_head, 8, kDevice, {.grid = grid});
    CheckPlan(table.View(), one_head, 8, plan);
    return plan;
  };
  const ChunkDecodePlan plan = plan_of({24'000, 1'000, 0, 6'000});
  EXPECT_EQ(std::ranges::max(LaneTiles(plan)), 3);  // of 375 + 16 + 94 tiles in 224 lanes
  EXPECT_EQ(StatesOf(plan), (std::vector<int32_t>{8, 0, 0, 2}));
  // A lane has a tile at least.
  EXPECT_EQ(plan_of({100, 1'000, 1, 64}).num_partials, 0);
  // Two clusters per sequence, or none. Of those of eight, 30 run at once, in up to four waves.
  EXPECT_EQ(ChunkDecodePartsGrid(15, one_head, 8, kDevice).waves, 1);
  EXPECT_EQ(ChunkDecodePartsGrid(16, one_head, 8, kDevice).waves, 2);
  for (const auto& [lanes, most_seqs] : {std::pair{16, 7}, {8, 60}}) {
    EXPECT_GT(ChunkDecodePartsGrid(most_seqs, one_head, lanes, kDevice).num_lanes, 0) << lanes;
    EXPECT_EQ(ChunkDecodePartsGrid(most_seqs + 1, one_head, lanes, kDevice).num_lanes, 0) << lanes;
  }
}

// Clusters that do not all run at once: those with most tiles begin first, and a second wave must
// be worth what it costs.
TEST(ChunkDecodePlanTest, ClustersInWavesBeginWithTheLongest) {
  const PagedKvLayout one_head{.num_pages = 1, .num_kv_heads = 1, .head_dim = 128};
  const ChunkDecodeGrid grid = ChunkDecodePartsGrid(20, one_head, 8, kDevice);
  EXPECT_EQ(grid, (ChunkDecodeGrid{
                      .num_lanes = 480, .cluster_lanes = 8, .takes_parts = true, .waves = 2}));
  struct Case {
    int32_t longest;
    int64_t clusters, most;  // of the longest, and tiles of its lanes
  };
  // 375 tiles in one wave of 30 clusters, of which 19 have the other sequences, and 1,563 in two.
  for (const Case& of : {Case{24'000, 10, 5}, {100'000, 40, 5}}) {
    std::vector<int32_t> lengths(20, 100);
    lengths[7] = 500;
    lengths[19] = of.longest;
    ChunkTable table;
    for (const int32_t length : lengths) {
      const std::vector<int32_t> pages(static_cast<size_t>(one_head.Pages().PagesFor(length)), 0);
      const int32_t chunk = table.AddChunk(pages, length);
      table.AddSequence({&chunk, 1});
    }
    const ChunkDecodePlan plan =
        PlanChunkDecode(table.View(), one_head, 8, kDevice, {.grid = grid});
    CheckPlan(table.View(), one_head, 8, plan);
    EXPECT_EQ(std::ranges::max(LaneTiles(plan)), of.most);
    std::vector<int32_t> order;  // of the sequences of all lanes
    for (const ChunkDecodeTask& task : plan.Tasks()) order.push_back(task.first_member.seq);
    const auto after = std::ranges::find_if(order, [](int32_t seq) { return seq != 19; });
    EXPECT_EQ(after - order.begin(), of.clusters * 8);
    EXPECT_EQ(*after, 7);
  }
}

TEST(ChunkDecodePlanTest, WarpsRefuseWhatOtherSequencesOrShiftsMake) {
  ChunkTable table;
  const int32_t pages[1] = {0};
  const int32_t chunks[2] = {table.AddChunk(pages, 100), table.AddChunk(pages, 100)};
  const int32_t shifts[2] = {0, 5};
  table.AddSequence(chunks, shifts);
  const ChunkDecodeGrid warps = ChunkDecodeWarpGrid(kEightHeads, kDevice);
  EXPECT_THROW(PlanChunkDecode(table.View(), kEightHeads, 16, kDevice, {.grid = warps}),
               InvalidArgument);
  EXPECT_THROW(PlanOf(std::vector<int32_t>{5}, kDevice, {.num_lanes = 6, .block_lanes = 4}),
               InvalidArgument);
}

// As measured: the README has a table.
TEST(ChunkDecodePlanTest, SequencesAreCutOnlyWhereThatIsQuicker) {
  struct Expected {
    int32_t num_seqs;
    int32_t length;
    bool whole;
    int64_t longest_lane;
  };
  for (const Expected& expected :
       {Expected{17, 300, true, 5}, Expected{20, 200, true, 4}, Expected{48, 192, true, 6},
        Expected{60, 256, true, 8}, Expected{40, 544, false, 11}, Expected{56, 544, true, 18},
        Expected{112, 192, true, 12}, Expected{20, 8192, false, 78}}) {
    const std::vector<int32_t> lengths(static_cast<size_t>(expected.num_seqs), expected.length);
    const ChunkDecodePlan plan = FullGridPlanOf(lengths);
    EXPECT_EQ(plan.num_partials == 0, expected.whole)
        << expected.num_seqs << " of " << expected.length;
    EXPECT_EQ(std::ranges::max(LaneTiles(plan)), expected.longest_lane)
        << expected.num_seqs << " of " << expected.length;
  }
}

TEST(ChunkDecodePlanTest, WholeSequencesGoToTheLaneThatEndsFirst) {
  std::vector<int32_t> lengths(66, 64);  // one tile each
  std::fill_n(lengths.begin() + 20, 10, 192);
  const ChunkDecodePlan plan = PlanOf(lengths);
  EXPECT_EQ(plan.num_partials, 0);
  EXPECT_EQ(std::ranges::max(LaneTiles(plan)), 3);
}

double PlanUs(const ChunkDecodePlan& plan) {
  return EstimateUs(plan, 2, kChunkDecodeTimes.memory_tile_us);
}

// One lane is for a sequence of 20 tiles, the 32 others for 63 of 10.
TEST(ChunkDecodePlanTest, NoLaneIsIdleThatWouldShortenTheLongest) {
  std::vector<int32_t> lengths(64, 640);
  lengths[5] = 1280;
  const ChunkDecodePlan plan = PlanOf(lengths);
  EXPECT_EQ(plan.num_partials, 0);
  EXPECT_EQ(std::ranges::max(LaneTiles(plan)), 20);
}

// Parts of 64 tiles, one more than a lane's share, leave one of 33 lanes idle.
TEST(ChunkDecodePlanTest, OneLongSequenceLeavesAtMostOneLaneIdle) {
  for (const int32_t length : {100'000, 131'072}) {
    const std::vector<int64_t> tiles = LaneTiles(PlanOf(std::vector{length}));
    EXPECT_EQ(tiles.size(), 33u);
    EXPECT_LE(std::ranges::count(tiles, 0), 1) << length;
  }
  // 126 us; 33 parts take 128, though the model expects 0.9 less.
  EXPECT_EQ(PlanOf(std::vector{131'072}).num_partials, 32);
}

TEST(ChunkDecodePlanTest, PartsOfALongSequenceAreDealtAmongWholeShortOnes) {
  std::vector<int32_t> lengths(32, 256);
  lengths[7] = 8192;
  const ChunkDecodePlan plan = PlanOf(lengths);
  const std::vector<int32_t> states = StatesOf(plan);
  EXPECT_EQ(std::ranges::count(states, 0), 31);
  EXPECT_GE(states[7], 16);
  EXPECT_EQ(std::ranges::max(LaneTiles(plan)), 8);  // 7.6 on average
}

// By the model; equal shares, which were taken before, end after 18.7, 14.6, 22.9 and 47.2 us.
TEST(ChunkDecodePlanTest, RaggedBatchesEndBeforeEqualSharesWould) {
  const auto ragged = [](size_t count, int32_t shortest, int32_t longest) {
    std::mt19937 rng(1);
    std::vector<int32_t> lengths(count);
    for (int32_t& length : lengths) {
      length =
          shortest + static_cast<int32_t>(rng() % static_cast<uint32_t>(longest - shortest + 1));
    }
    return lengths;
  };
  std::vector<int32_t> one_long(32, 256);
  one_long[7] = 8192;
  EXPECT_LT(PlanUs(FullGridPlanOf(ragged(20, 100, 1000))), 16.4);
  EXPECT_LT(PlanUs(FullGridPlanOf(ragged(12, 500, 900))), 12.9);
  EXPECT_LT(PlanUs(FullGridPlanOf(one_long)), 19.3);
  EXPECT_LT(PlanUs(FullGridPlanOf(ragged(40, 200, 2000))), 46.9);
}

// A decoder pads a batch to the size of a graph.
TEST(ChunkDecodePlanTest, PaddingRowsGoToTheLanesThatEndFirst) {
  for (const auto& [rows, bucket] :
       {std::pair{17, 24}, {65, 96}, {97, 128}, {129, 192}, {193, 256}}) {
    std::vector<int32_t> lengths(static_cast<size_t>(rows), 192);
    const double without_us = PlanUs(FullGridPlanOf(lengths));
    lengths.resize(static_cast<size_t>(bucket), 0);
    const ChunkDecodePlan plan = FullGridPlanOf(lengths);
    const auto of_a_lane =
        static_cast<double>(DivideUp(bucket - rows, int64_t{plan.size.grid.num_lanes}));
    EXPECT_LE(PlanUs(plan), without_us + of_a_lane * TaskUs(2) + 1e-9) << rows;
    const auto reads_nothing = [](const ChunkDecodeTask& task) {
      return task.range_begin == task.range_end;
    };
    EXPECT_EQ(std::ranges::count_if(plan.Tasks(), reads_nothing), bucket - rows);
  }
}

// Longer parts than a lane's share, of sizes that differ by more than a tile.
TEST(ChunkDecodePlanTest, SizesOfPartsAreTriedThatMakeFewerParts) {
  std::vector<int32_t> lengths(14, 499);
  lengths[0] = lengths[1] = 2148;
  ChunkTable table;
  for (size_t i = 0; i < lengths.size(); ++i) {
    table.AddSequence(std::vector<int32_t>{table.AddChunk(
        std::vector<int32_t>(static_cast<size_t>(DivideUp(lengths[i], 64)), 0), lengths[i])});
  }
  const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = 8, .page_size = 64, .head_dim = 128};
  const ChunkDecodePlan plan = PlanChunkDecode(table.View(), layout, 64, kH200);
  EXPECT_LT(EstimateUs(plan, 8, kChunkDecodeTimes.memory_tile_us),
            16.2);  // 17.0 with the next tile more
}

// Two sequences share 11 tiles, one for each of 11 lanes. The 22 others are for as many sequences
// of eight tiles.
TEST(ChunkDecodePlanTest, WhatLanesReadOfSharedRunsCountsWhenTheRestIsDealt) {
  ChunkTable table;
  const auto add_chunk = [&table](int32_t length) {
    return table.AddChunk(std::vector<int32_t>(static_cast<size_t>(DivideUp(length, 256)), 0),
                          length);
  };
  const int32_t shared = add_chunk(11 * kChunkDecodeTileTokens);
  for (int32_t s = 0; s < 2; ++s) table.AddSequence({&shared, 1});
  for (int32_t s = 0; s < 20; ++s) {
    const int32_t own = add_chunk(8 * kChunkDecodeTileTokens);
    table.AddSequence({&own, 1});
  }
  const auto runs = SharedRunsOfTable(table.View(), 2, ChunkSharing::kAlways);
  const ChunkDecodePlan plan =
      PlanChunkDecode(table.View(), kEightHeads, 16, kDevice,
                      ChooseChunkDecodeSharing(table.View(), runs, kEightHeads, 16, kDevice,
                                               ChunkSharing::kAlways));
  EXPECT_TRUE(ReadsOnce(plan));
  CheckPlan(table.View(), kEightHeads, 16, plan);
  for (int32_t lane = 0; lane < plan.size.grid.num_lanes; ++lane) {
    EXPECT_LE(plan.LaneTaskIndptr()[lane + 1] - plan.LaneTaskIndptr()[lane], 1) << lane;
  }
}

// A graph reserves room by the number of sequences alone (DecodeRoomOf): there are fewer cuts than
// lanes, whatever the lengths.
TEST(ChunkDecodePlanTest, PlansOfAnyLengthsFitTheRoomOfTheirNumber) {
  std::mt19937_64 rng(17);
  int32_t most_cuts = 0, most_states = 0;
  for (int round = 0; round < 2000; ++round) {
    const PagedKvLayout layout{
        .num_pages = 1, .num_kv_heads = 1 << rng() % 5, .page_size = 256, .head_dim = 128};
    const auto num_seqs = static_cast<int32_t>(1 + rng() % (round % 2 == 0 ? 12 : 150));
    ChunkTable table;
    int64_t tokens = 0;
    for (int32_t s = 0; s < num_seqs; ++s) {
      const int32_t longest = rng() % 8 == 0 ? 40'000 : 1 + static_cast<int32_t>(rng() % 2000);
      const auto length = static_cast<int32_t>(rng() % longest);
      const std::vector<int32_t> pages(static_cast<size_t>(layout.Pages().PagesFor(length)), 0);
      const int32_t chunk = table.AddChunk(pages, length);
      table.AddSequence({&chunk, 1});
      tokens += length;
    }
    ChunkDecodeGrid grid = ChunkDecodeFullGrid(layout, kDevice);
    if (round % 4 > 1) {
      grid = ChunkDecodeWarpGrid(layout, kDevice);
      grid.takes_parts = true;
    } else if (const ChunkDecodeGrid parts =
                   ChunkDecodePartsGrid(num_seqs, layout, round % 16 > 8 ? 8 : 16, kDevice);
               parts.num_lanes > 0 && round % 8 > 3) {
      grid = parts;
    }
    const auto num_q_heads = static_cast<int32_t>(layout.num_kv_heads * (1 + rng() % 16));
    const ChunkDecodePlan plan =
        PlanChunkDecode(table.View(), layout, num_q_heads, kDevice, {.grid = grid});
    if (tokens < 10'000) {  // CheckPlan lists them all
      CheckPlan(table.View(), layout, num_q_heads, plan);
      ASSERT_FALSE(HasFailure()) << round;
    }
    ASSERT_LT(plan.size.tasks, num_seqs + grid.num_lanes) << round;
    ASSERT_LT(plan.size.ranges, num_seqs + grid.num_lanes) << round;
    ASSERT_LE(plan.num_partials, num_seqs + grid.num_lanes) << round;
    most_cuts = std::max(most_cuts, static_cast<int32_t>(plan.size.tasks) - num_seqs);
    most_states = std::max(most_states, std::ranges::max(StatesOf(plan)));
  }
  EXPECT_GE(most_cuts, 200);
  EXPECT_GE(most_states, 100);
}

TEST(ChunkDecodePlanTest, ATableOfNothingHasAPlanOfNothing) {
  const ChunkDecodePlan plan = PlanChunkDecode({}, kEightHeads, 16, kDevice);
  EXPECT_TRUE(plan.Tasks().empty());
  EXPECT_EQ(plan.View().lane_starts[0].task_end, 0);
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
    const ChunkDecodeChoice lanes{.grid = ChunkDecodeFullGrid(layout, kDevice)};
    EXPECT_EQ(PlanChunkDecode(table.View(), layout, 64, kDevice, lanes).num_partials, partials)
        << num_seqs;
  }
}

// What the CUDA test of many states relies on, and where the kernel for bundles is taken.
TEST(ChunkDecodePlanTest, ManyStatesAreAddedInBundles) {
  const DecodeCase decode = MakeDecodeCase(WithLengths({.page_size = 64}, kManyStatesLengths));
  const ChunkDecodePlan plan =
      PlanChunkDecode(decode.table.View(), decode.layout, decode.num_q_heads, kDevice,
                      {.grid = {.num_lanes = kManyStatesLanes}});
  EXPECT_EQ(StatesOf(plan), (std::vector<int32_t>{300, 120, 65, 33, 17, 0, 0, 0}));
  for (const int32_t group : {1, 2, 3, 4, 5, 9, 16}) {
    EXPECT_TRUE(ChunkDecodeBundles({.num_lanes = kManyStatesLanes, .cluster_lanes = 1}, 8, group));
    EXPECT_FALSE(ChunkDecodeBundles({.num_lanes = 60, .cluster_lanes = 1}, 8, group)) << group;
  }
  EXPECT_FALSE(ChunkDecodeBundles({.num_lanes = 64, .cluster_lanes = 1}, 1, 4));
  EXPECT_TRUE(ChunkDecodeBundles({.num_lanes = 65, .cluster_lanes = 1}, 1, 4));
  EXPECT_TRUE(ChunkDecodeBundles({.num_lanes = 64, .cluster_lanes = 1}, 1, 5));
  EXPECT_FALSE(ChunkDecodeBundles({.num_lanes = 800, .cluster_lanes = 8}, 1, 5));
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
    const ChunkDecodeChoice choice = ChooseChunkDecodeSharing(
        table.View(), runs, layout, num_q_heads, kDevice, ChunkSharing::kAlways, grid);
    const ChunkDecodePlan plan =
        PlanChunkDecode(table.View(), layout, num_q_heads, kDevice, choice);
    CheckPlan(table.View(), layout, num_q_heads, plan);
    EXPECT_EQ(ReadsOnce(plan), !choice.runs.empty());
    EXPECT_EQ(ReadsOnce(plan), choice.tokens_saved > 0);
    return plan;
  };
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, kDevice);
  EXPECT_TRUE(ReadsOnce(plan_of(16, {})));
  EXPECT_EQ(plan_of(16, {}).size.grid, full);
  EXPECT_FALSE(ReadsOnce(plan_of(16, clusters)));
  EXPECT_EQ(plan_of(16, clusters).size.grid, clusters);
  // With 16 heads per group a tile of rows holds one member: both would read the chunk in any case.
  EXPECT_FALSE(ReadsOnce(plan_of(32, {})));
  EXPECT_EQ(plan_of(32, {}).size.grid, (ChunkDecodeGrid{.num_lanes = 16, .cluster_lanes = 4}));
  EXPECT_FALSE(ReadsOnce(plan_of(32, full)));
}

// Each change of the shift begins a segment, which leaves a state.
TEST(ChunkDecodePlanTest, MoreStatesThanAPlaceCountsAreRefused) {
  const auto plan_of = [](int32_t num_chunks) {
    const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
    ChunkTable table;
    std::vector<int32_t> chunks, shifts;
    for (int32_t i = 0; i < num_chunks; ++i) {
      chunks.push_back(table.AddChunk(std::vector<int32_t>{0}, 2));
      shifts.push_back(i % 2);
    }
    table.AddSequence(chunks, shifts);
    return PlanChunkDecode(table.View(), layout, 1, kDevice);
  };
  EXPECT_EQ(plan_of(kChunkDecodeMaxStates).num_partials, kChunkDecodeMaxStates);
  EXPECT_THAT([&] { plan_of(kChunkDecodeMaxStates + 1); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  ::testing::HasSubstr("sequence 0 has 46341 partial states")));
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
  EXPECT_TRUE(
      same(std::span(plan.View().lane_starts, static_cast<size_t>(plan.size.grid.num_lanes)),
           copy.lane_starts));
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
  EXPECT_THAT(testing::MessageOf([&] { plan.CopyTo(room, block.data()); }),
              ::testing::AllOf(::testing::HasSubstr(StrCat(plan.size.tasks, " tasks")),
                               ::testing::HasSubstr(StrCat(room.tasks, " tasks"))));
  room = plan.size;
  ++room.grid.num_lanes;
  EXPECT_THROW(plan.CopyTo(room, block.data()), InvalidArgument);
}

}  // namespace
}  // namespace tokline::testing
