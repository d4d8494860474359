// Which grid a step of chunk_decode gets, on every device.
#include <gmock/gmock.h>

#include <set>
#include <span>
#include <vector>

#include "harness/tests/kernels/chunk_decode_plan_case.h"

namespace tokline::testing {
namespace {

// With few KV heads or many query heads, states that meet in device memory cost more than tiles.
TEST(ChunkDecodePlanTest, LongerSequencesGetAClusterEachWhereMergesCostMore) {
  const auto grid_of = [](ChunkDecodeLoad load, int32_t num_kv_heads, int32_t group,
                          int32_t head_dim = 128) {
    return ChooseChunkDecodeGrid(
        load, {.num_pages = 1, .num_kv_heads = num_kv_heads, .head_dim = head_dim}, group, kDevice);
  };
  EXPECT_EQ(grid_of({1, 500, 500}, 2, 16), (ChunkDecodeGrid{8, 8}));
  EXPECT_EQ(grid_of({1, 2000, 2000}, 2, 16), (ChunkDecodeGrid{16, 16}));
  // Parts of one, for whose states one more merge is due. It takes longer with more parts, and with
  // more rows than blocks of a cluster.
  const auto parts = [](int32_t num_lanes, int32_t cluster_lanes) {
    return ChunkDecodeGrid{
        .num_lanes = num_lanes, .cluster_lanes = cluster_lanes, .takes_parts = true};
  };
  EXPECT_EQ(grid_of({1, 9000, 9000}, 2, 16), parts(112, 16));
  EXPECT_EQ(grid_of({2, 32768, 65536}, 2, 7, 64), parts(176, 8));
  EXPECT_EQ(grid_of({1, 40000, 40000}, 8, 1), ChunkDecodeFullGrid(kEightHeads, kDevice));
  EXPECT_EQ(grid_of({16, 3135, 16 * 3135}, 1, 16), (ChunkDecodeGrid{128, 8}));
  // An SM has room for four blocks of head_dim 64, and for two of 128. Seven clusters of sixteen
  // find room with one block on an SM.
  const auto clusters_of = [](int32_t num_kv_heads, int32_t head_dim, const DeviceFacts& device) {
    return ChunkDecodeClusterGrid(
        1, {.num_pages = 1, .num_kv_heads = num_kv_heads, .head_dim = head_dim},
        kChunkDecodeMaxClusterLanes, device);
  };
  EXPECT_EQ(clusters_of(32, 64, kDevice), (ChunkDecodeGrid{8, 8}));
  EXPECT_EQ(clusters_of(32, 128, kDevice), (ChunkDecodeGrid{4, 4}));
  EXPECT_EQ(clusters_of(14, 128, kDevice), (ChunkDecodeGrid{16, 16}));
  EXPECT_EQ(clusters_of(15, 128, kDevice), (ChunkDecodeGrid{8, 8}));
  EXPECT_EQ(clusters_of(21, 64, kDevice), (ChunkDecodeGrid{16, 16}));
  DeviceFacts small = kDevice;  // a part of the device
  small.max_cluster_blocks = 4;
  EXPECT_EQ(clusters_of(1, 128, small), (ChunkDecodeGrid{4, 4}));
  // Where one is much longer than the others it gets most of the clusters, which run in waves.
  EXPECT_EQ(grid_of({8, 9000, 10000}, 4, 8).waves, 3);
  EXPECT_EQ(grid_of({2, 60000, 120000}, 4, 8).cluster_lanes, 1);
}

// Equal shares for all 33 lanes would leave a state for every tile.
TEST(ChunkDecodePlanTest, FewerLanesLeaveFewerStates) {
  const ChunkDecodePlan plan = FullGridPlanOf(std::vector<int32_t>{6800});
  EXPECT_LT(plan.num_partials, 33);
  EXPECT_GE(plan.num_partials, 12);
}

TEST(ChunkDecodePlanTest, FewShortSequencesGetAClusterEach) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(kEightHeads, kDevice);
  EXPECT_EQ(full, (ChunkDecodeGrid{.num_lanes = 33, .cluster_lanes = 1}));
  struct Expected {
    std::vector<int32_t> lengths;
    ChunkDecodeGrid grid;
    int64_t longest_lane;
  };
  for (const Expected& expected :
       std::vector<Expected>{{{65}, {4, 4}, 1},
                             {{300}, {8, 8}, 1},
                             {{1024}, {8, 8}, 2},
                             {{2048}, {16, 16}, 2},
                             {{4096}, {16, 16}, 4},
                             {{192, 1000}, {16, 8}, 2},
                             {{192, 192, 100, 64}, {16, 4}, 1},
                             {{192, 192, 0, 64, 256, 1, 256, 200}, {16, 2}, 2},
                             // The longest would keep its cluster when all others have ended.
                             {{192, 192, 0, 64, 256, 1, 2048, 200}, full, 4},
                             {std::vector<int32_t>(17, 300), full, 5}}) {
    const ChunkDecodePlan plan = PlanOf(expected.lengths);
    EXPECT_EQ(plan.size.grid, expected.grid)
        << expected.lengths.size() << " of " << expected.lengths[0];
    EXPECT_EQ(std::ranges::max(LaneTiles(plan)), expected.longest_lane) << expected.lengths[0];
    EXPECT_TRUE(plan.size.grid.cluster_lanes == 1 || plan.num_partials == 0);
  }
}

// As many as there are warps, or of a few tokens: a warp each. Neighbouring lanes of warps, which
// get the longest first, lie in different blocks.
TEST(ChunkDecodePlanTest, ManyOrTinySequencesGetAWarpEach) {
  const ChunkDecodeGrid warps = ChunkDecodeWarpGrid(kEightHeads, kDevice);
  EXPECT_EQ(warps, (ChunkDecodeGrid{.num_lanes = 132, .cluster_lanes = 1, .block_lanes = 4}));
  EXPECT_EQ(PlanOf(std::vector<int32_t>(128, 192)).size.grid, warps);
  EXPECT_EQ(PlanOf(std::vector<int32_t>{1, 3, 0, 7}).size.grid, warps);
  std::vector<int32_t> lengths(200, 64);
  lengths[150] = 640;
  lengths[20] = 0;
  const ChunkDecodePlan plan = PlanOf(lengths, kDevice, warps);
  EXPECT_EQ(plan.num_partials, 0);
  EXPECT_EQ(plan.Tasks()[static_cast<size_t>(plan.LaneTaskIndptr()[0])].first_member.seq, 150);
  const std::vector<int64_t> tiles = LaneTiles(plan);
  EXPECT_EQ(tiles[0], 10);
  EXPECT_EQ(std::ranges::max(std::span(tiles).subspan(1)), 2);
  // A device whose blocks get too little shared memory has none.
  DeviceFacts small = kDevice;
  small.shared_bytes_per_block = 99 << 10;
  EXPECT_EQ(ChunkDecodeWarpGrid(kEightHeads, small).num_lanes, 0);
  EXPECT_EQ(ChunkDecodeGrids(1, kEightHeads, small).size(), 5);  // no warps at all
}

// Only the full grid reads shared runs once.
TEST(ChunkDecodePlanTest, WarpsAndClustersSaveNoTokens) {
  for (const ChunkDecodeLoad& load : {ChunkDecodeLoad{256, 576, 256 * 576, 255 * 512},
                                      {128, 320, 128 * 320, 127 * 256},
                                      {12, 320, 12 * 320, 11 * 256}}) {
    ChunkDecodeLoad alone = load;
    alone.tokens_saved = 0;
    EXPECT_TRUE(ChooseChunkDecodeGrid(alone, kEightHeads, 2, kDevice).ReadsWhole());
    EXPECT_EQ(ChooseChunkDecodeGrid(load, kEightHeads, 2, kDevice),
              ChunkDecodeFullGrid(kEightHeads, kDevice))
        << load.num_seqs;
  }
}

TEST(ChunkDecodePlanTest, EveryPlanFitsEveryDeviceAndItsCode) {
  std::set<int32_t> cluster_sizes;
  for (const NamedDevice& device : Devices()) {
    for (const int32_t head_dim : {64, 128}) {
      EXPECT_LE(ChunkDecodeBlockBytes(head_dim), device.facts.shared_bytes_per_block)
          << ::testing::PrintToString(device) << ", head_dim " << head_dim;
      EXPECT_LE(ChunkDecodeBlocksPerSm(head_dim, device.facts) * kChunkDecodeWarps * 32 *
                    ChunkDecodeRegisters(head_dim),
                device.registers_per_sm)
          << ::testing::PrintToString(device) << ", head_dim " << head_dim;
      if (!ChunkDecodeQueriesWithTiles(head_dim, device.facts)) continue;
      const int64_t bytes = ChunkDecodeBlockBytes(head_dim) + ChunkDecodeQueryBytes(head_dim);
      EXPECT_LE(bytes, device.facts.shared_bytes_per_block);
      const PagedKvLayout layout{.num_pages = 1, .num_kv_heads = 1, .head_dim = head_dim};
      const int32_t blocks = ChunkDecodeFullGrid(layout, device.facts).num_lanes;
      EXPECT_LE(blocks / device.facts.sm_count * bytes, device.facts.shared_bytes_per_sm);
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
        EXPECT_LE(plan.size.grid.cluster_lanes, device.facts.max_cluster_blocks);
        EXPECT_GE(device.facts.compute_major, 9);
        EXPECT_GE(device.facts.code_architecture, 90) << "its code has no cluster instructions";
        cluster_sizes.insert(plan.size.grid.cluster_lanes);
        // Every cluster runs at once: none waits until another has ended. Those of more than two
        // blocks leave SMs idle.
        const int64_t bytes = ChunkDecodeBlockBytes(layout.head_dim) + 1024;
        const int64_t blocks_per_sm = device.facts.shared_bytes_per_sm / bytes;
        const int32_t sms = plan.size.grid.cluster_lanes > 8   ? device.facts.sm_count * 6 / 7
                            : plan.size.grid.cluster_lanes > 2 ? device.facts.sm_count * 10 / 11
                                                               : device.facts.sm_count / 2 * 2;
        EXPECT_LE(plan.size.grid.num_lanes * num_kv_heads, blocks_per_sm * sms);
      }
    }
  }
  EXPECT_THAT(cluster_sizes, ::testing::IsSupersetOf({2, 4, 8, 16}));
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
  const ChunkDecodeChoice choice{.grid = {.num_lanes = 8, .cluster_lanes = 8}};
  EXPECT_NO_THROW(PlanChunkDecode(table.View(), layout, 4, kDevice, choice));
  EXPECT_THAT(
      [&] { PlanChunkDecode(table.View(), layout, 4, facts, choice); },
      ::testing::ThrowsMessage<InvalidArgument>(
          "grid has clusters of 8 lanes; they need compute capability 9.0 and code compiled "
          "for it, here 9.0 and code for 8.0"));
}

TEST(ChunkDecodePlanTest, NoSequencesGetTheFullGrid) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(kEightHeads, kDevice);
  EXPECT_THAT(ChunkDecodeGrids(0, kEightHeads, kDevice), ::testing::ElementsAre(full));
  EXPECT_EQ(ChooseChunkDecodeGrid({}, kEightHeads, 2, kDevice), full);
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

}  // namespace
}  // namespace tokline::testing
