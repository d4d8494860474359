// When chunks that several sequences list are read once.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

#include "harness/tests/kernels/devices.h"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_sharing.h"
#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline::testing {
namespace {

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
  const ChunkDecodePlan plan = PlanChunkDecode(
      table.View(), layout, 32, kH200, {.runs = runs, .grid = ChunkDecodeFullGrid(layout, kH200)});
  EXPECT_EQ(tokens_read(plan), 2 * 1024 + 32 * 128);
  EXPECT_EQ(SharedTokensSaved(runs, 4), 30 * 1024);
  EXPECT_EQ(tokens_read(PlanChunkDecode(table.View(), layout, 32, kH200)), 32 * (1024 + 128));
  const auto choice_of = [&](ChunkSharing sharing, const DeviceFacts& device = kH200) {
    return ChooseChunkDecodeSharing(table.View(), runs, layout, 32, device, sharing);
  };
  EXPECT_TRUE(choice_of(ChunkSharing::kNever).runs.empty());
  EXPECT_EQ(choice_of(ChunkSharing::kWhenItPays, DeviceFacts{}).tokens_saved, 30 * 1024);
  // A task of a run lane has room for all 128 rows.
  const ChunkDecodeChoice choice = choice_of(ChunkSharing::kWhenItPays);
  EXPECT_EQ(choice.runs.size(), 1u);
  EXPECT_EQ(choice.grid.run_lanes, 132 / 8);
  EXPECT_EQ(choice.tokens_saved, 31 * 1024);
  EXPECT_EQ(tokens_read(PlanChunkDecode(table.View(), layout, 32, kH200, choice)), 1024 + 32 * 128);
}

// Where code for sm_90a runs, unless their queries are rotated or fit one tile of rows, or merges
// are in bundles.
TEST(ChunkDecodePlanTest, RunLanesReadRunsOfManyRows) {
  const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  const auto run_lanes = [&](int32_t members, int32_t group, int32_t shift,
                             const DeviceFacts& device = kH200) {
    SharedRun run{.members = {}, .chunks = {0}, .tokens = 4096};
    for (int32_t s = 0; s < members; ++s) run.members.push_back({.seq = s});
    run.members.back().shift = shift;
    const std::vector<int64_t> lengths(static_cast<size_t>(members), 4096 + 200);
    return ChooseChunkDecodeRunGrid({&run, 1}, lengths, layout, group, device,
                                    ChunkSharing::kAlways)
        .run_lanes;
  };
  EXPECT_EQ(run_lanes(9, 2, 0), 16);
  EXPECT_EQ(run_lanes(8, 2, 0), 0);
  EXPECT_EQ(run_lanes(9, 2, 1), 0);
  EXPECT_EQ(run_lanes(2, 16, 0), 0);  // 33 lanes of 4 rows each for 2 sequences: bundles
  EXPECT_EQ(run_lanes(3, 16, 0), 16);
  for (const NamedDevice& device : Devices()) {
    EXPECT_EQ(run_lanes(64, 4, 0, device.facts) > 0, device.facts.HasHopperCode())
        << ::testing::PrintToString(device);
  }
  const ChunkTable none;
  EXPECT_THROW(PlanChunkDecode(none.View(), layout, 16, kH200,
                               {.grid = {.num_lanes = 16, .cluster_lanes = 8, .run_lanes = 1}}),
               InvalidArgument);
}

// As measured: the README has a table.
TEST(ChunkDecodePlanTest, RunLanesAreTakenWhereThatIsQuicker) {
  struct Expected {
    int32_t members, shared, own, num_q_heads, num_kv_heads;
    ChunkDecodeGrid grid;
  };
  const ChunkDecodeGrid full{.num_lanes = 33};
  for (const Expected& expected : {Expected{64, 16'384, 256, 32, 8, {132, 1, 4, 16}},
                                   {256, 4096, 128, 16, 8, {132, 1, 4, 16}},
                                   {16, 8192, 512, 64, 8, {33, 1, 1, 16}},
                                   {128, 1024, 128, 16, 8, {132, 1, 4, 16}},
                                   {32, 2048, 200, 28, 4, {66, 1, 1, 33}},
                                   {12, 4096, 64, 16, 8, {33, 1, 1, 16}},
                                   {20, 512, 300, 32, 8, full},
                                   {16, 64, 300, 32, 8, full}}) {
    const PagedKvLayout layout{
        .num_pages = 1, .num_kv_heads = expected.num_kv_heads, .page_size = 64, .head_dim = 128};
    SharedRun run{.members = {}, .chunks = {0}, .tokens = expected.shared};
    for (int32_t s = 0; s < expected.members; ++s) run.members.push_back({.seq = s});
    const std::vector<int64_t> lengths(static_cast<size_t>(expected.members),
                                       expected.shared + expected.own);
    EXPECT_EQ(ChooseChunkDecodeRunGrid({&run, 1}, lengths, layout,
                                       expected.num_q_heads / expected.num_kv_heads, kH200),
              expected.grid)
        << expected.members << " of " << expected.shared << " + " << expected.own;
  }
}

// Pieces of all parts together are as many as run lanes, and about as long.
TEST(ChunkDecodePlanTest, RunLanesGetEqualPieces) {
  const PagedKvLayout layout{.num_pages = 64, .num_kv_heads = 8, .page_size = 256, .head_dim = 128};
  ChunkTable table;
  const std::vector<int32_t> pages(64, 0);
  const int32_t shared = table.AddChunk(pages, 16'384 - 5);
  for (int32_t s = 0; s < 64; ++s) table.AddSequence(std::array{shared});
  const auto runs = SharedRunsOfTable(table.View(), 4);
  const ChunkDecodePlan plan =
      PlanChunkDecode(table.View(), layout, 32, kH200,
                      ChooseChunkDecodeSharing(table.View(), runs, layout, 32, kH200));
  const auto lanes = plan.LaneTaskIndptr().subspan(static_cast<size_t>(plan.size.grid.num_lanes));
  ASSERT_EQ(lanes.size(), 17);
  for (size_t lane = 0; lane < 16; ++lane) {
    ASSERT_EQ(lanes[lane + 1] - lanes[lane], 1);
    const ChunkDecodeTask& task = plan.Tasks()[static_cast<size_t>(lanes[lane])];
    EXPECT_EQ(task.member_count, 32);
    const int32_t tokens = task.first_range.token_end - task.first_range.token_begin;
    EXPECT_TRUE(tokens == 2048 || tokens == 2048 - 5) << tokens;
  }
  // Every sequence has another task, though it reads nothing else.
  EXPECT_EQ(plan.size.tasks, 16 + 64);
  const bool warps = plan.size.grid.block_lanes > 1;
  EXPECT_EQ(plan.num_partials, 64 * (8 + !warps));
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
    for (const int32_t value : {task.member_begin, int32_t{task.member_count}, task.range_begin,
                                task.range_end, int32_t{task.clustered}}) {
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

// No plan changes by accident: a change of how lanes are dealt comes with a new hash.
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
      for (const ChunkDecodeGrid& grid : {ChunkDecodeGrid{}, ChunkDecodeFullGrid(layout, kH200)}) {
        AddToHash(PlanChunkDecode(table.View(), layout, num_q_heads, kH200,
                                  ChooseChunkDecodeSharing(table.View(), runs, layout, num_q_heads,
                                                           kH200, sharing, grid)),
                  hash);
      }
    }
  }
  EXPECT_EQ(hash, 18428694654841767449ull);
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
  DeviceFacts without_run_lanes = kH200;
  without_run_lanes.code_is_sm90a = false;
  std::mt19937_64 rng(7);
  int chosen = 0, left = 0;
  for (int round = 0; round < 4300; ++round) {
    const PagedKvLayout layout{.num_pages = 1 << 16,
                               .num_kv_heads = 1 << rng() % 5,
                               .page_size = 16 << 2 * (rng() % 3),
                               .head_dim = 128};
    const int32_t group = 1 + static_cast<int32_t>(rng() % 16);
    const ChunkTable tree = RandomTree(rng, layout.page_size);
    const ChunkTableView table = tree.View();
    const auto runs = SharedRunsOfTable(table, group);
    const DeviceFacts& device = round % 2 == 0 ? kH200 : without_run_lanes;
    const int32_t num_q_heads = layout.num_kv_heads * group;
    const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, device);
    const ChunkDecodeChoice choice = ChooseChunkDecodeSharing(
        table, runs, layout, num_q_heads, device, ChunkSharing::kWhenItPays, full);
    left += choice.runs.empty() && !runs.empty();
    if (choice.runs.empty()) {
      EXPECT_EQ(choice.grid, full) << round;  // no idle run lanes
    }
    if (choice.runs.empty() || choice.grid.ReadsWhole()) continue;
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
    const auto plan_of = [&](const ChunkDecodeChoice& of) {
      return PlanChunkDecode(table, layout, num_q_heads, device, of);
    };
    EXPECT_LT(EstimateUs(plan_of(choice), group, kTimes.memory_tile_us) + kTimes.least_gain_us,
              EstimateUs(plan_of({.grid = full}), group, tile_us))
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

}  // namespace
}  // namespace tokline::testing
