// The model of a block's time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/chunk_decode/chunk_decode_times.h"

namespace tokline::testing {
namespace {

constexpr ChunkDecodeTimes kTimes;
constexpr int32_t kGroup = 2;
const double kTaskUs = kTimes.task_us + kTimes.task_row_us;
// A tile while both lanes read, and while one of two does.
const double kTileUs = WithMemoryUs(kTimes.alone_tile_us, kTimes.memory_tile_us);
const double kHalfTileUs =
    WithMemoryUs(kTimes.alone_tile_us, kTimes.memory_tile_us* std::pow(0.5, kTimes.reading_power));

// Two lanes, and sequences of one segment each.
double UsOf(const std::vector<ChunkDecodePiece>& pieces, const std::vector<int32_t>& tiles,
            bool wide = false, const ChunkDecodeGrid& grid = {.num_lanes = 2}) {
  std::vector<SharedRun::Member> members;
  for (int32_t s = 0; s < std::ssize(tiles); ++s) members.push_back({.seq = s});
  std::vector<ChunkDecodeSegment> segments;
  for (size_t s = 0; s < tiles.size(); ++s) {
    segments.push_back({.members = {&members[s], 1}, .tiles = tiles[s], .wide = wide});
  }
  return std::ranges::max(
      LaneEndsUs(pieces, segments, static_cast<int32_t>(tiles.size()), grid, kGroup));
}

TEST(ChunkDecodeTimesTest, TilesTakeLongerWhileMoreLanesRead) {
  const std::vector<ChunkDecodePiece> pieces{{0, 0, 0, 4}, {1, 1, 0, 3}};
  EXPECT_DOUBLE_EQ(UsOf(pieces, {4, 3}), 3 * kTileUs + kHalfTileUs + kTaskUs);
  EXPECT_DOUBLE_EQ(UsOf(pieces, {4, 3}, true), 4 * kTimes.wide_tile_us + kTaskUs);
}

TEST(ChunkDecodeTimesTest, PartialStatesAndTheirMergeTakeTimeOfTheLanesThatHaveThem) {
  // The first sequence is cut, and both lanes read two tiles of it.
  const double two_tiles_us = 2 * kTileUs;
  const double partial_us = kTaskUs + kTimes.state_us,
               merge_us = kTimes.merge_us + AddStatesUs(2, kGroup);
  EXPECT_DOUBLE_EQ(UsOf({{0, 0, 0, 2}, {1, 0, 2, 2}}, {4}), two_tiles_us + partial_us + merge_us);
  // The second lane has three more tiles of another sequence. The first one merges if the second
  // leaves its state before it reads them.
  const double longer_us = two_tiles_us + 3 * kHalfTileUs + kTaskUs + partial_us;
  EXPECT_DOUBLE_EQ(UsOf({{0, 0, 0, 2}, {1, 0, 2, 2}, {1, 1, 0, 3}}, {4, 3}), longer_us);
  EXPECT_DOUBLE_EQ(UsOf({{0, 0, 0, 2}, {1, 1, 0, 3}, {1, 0, 2, 2}}, {4, 3}), longer_us + merge_us);
}

// As many rows of a warp and loads of eight states, or of four of two rows, as AddStates of
// merge_device.cuh makes.
TEST(ChunkDecodeTimesTest, AMergeTakesLongerWithMoreStatesAndMoreRowsOfAWarp) {
  const double row_us = kTimes.merged_row_us, rows_us = kTimes.merged_rows_us,
               states_us = kTimes.merged_states_us;
  EXPECT_DOUBLE_EQ(AddStatesUs(4, 5), 2 * row_us);
  EXPECT_DOUBLE_EQ(AddStatesUs(8, 5), 2 * row_us + rows_us);
  EXPECT_DOUBLE_EQ(AddStatesUs(8, 16), 4 * row_us + 3 * rows_us);
  EXPECT_DOUBLE_EQ(AddStatesUs(9, 16), 4 * row_us + 5 * rows_us);
  // Warps share a row: four the only one, two each of two.
  for (const auto& [group, at_once] : {std::pair{1, 32}, {2, 16}, {3, 8}, {4, 8}}) {
    EXPECT_DOUBLE_EQ(AddStatesUs(2, group), row_us) << group;
    EXPECT_DOUBLE_EQ(AddStatesUs(at_once, group), row_us) << group;
    EXPECT_DOUBLE_EQ(AddStatesUs(at_once + 1, group), row_us + states_us) << group;
  }
}

// Both lanes read a tile of a run that three sequences share, and the first ends as late as the
// second. It adds the states of all three.
TEST(ChunkDecodeTimesTest, ATaskThatMergesForSeveralSequencesArrivesOnce) {
  const std::vector<SharedRun::Member> members{{0, 0}, {1, 0}, {2, 0}};
  const std::vector<ChunkDecodeSegment> segments{{.members = members, .tiles = 2}};
  const std::vector<ChunkDecodePiece> pieces{{0, 0, 0, 1}, {1, 0, 1, 1}};
  EXPECT_DOUBLE_EQ(
      std::ranges::max(LaneEndsUs(pieces, segments, 3, {.num_lanes = 2}, kGroup)),
      kTileUs + kTaskUs + kTimes.state_us + kTimes.merge_us + 3 * AddStatesUs(2, kGroup));
}

// Two lanes leave the states of two sequences at the same time. The first lane adds all of them, in
// whatever order the pieces of different lanes stand.
TEST(ChunkDecodeTimesTest, PiecesOfDifferentLanesMayStandInAnyOrder) {
  const std::vector<ChunkDecodePiece> by_lane{
      {0, 0, 0, 1}, {0, 1, 0, 1}, {1, 0, 1, 1}, {1, 1, 1, 1}};
  const std::vector<ChunkDecodePiece> mixed{{0, 0, 0, 1}, {1, 0, 1, 1}, {1, 1, 1, 1}, {0, 1, 0, 1}};
  EXPECT_DOUBLE_EQ(UsOf(mixed, {2, 2}), UsOf(by_lane, {2, 2}));
}

// If a hundred lanes share a sequence, one block adds all its states when there are many other
// sequences; otherwise several blocks do.
TEST(ChunkDecodeTimesTest, StatesThatAreAddedInBundlesTakeLessTime) {
  std::vector<ChunkDecodePiece> pieces;
  for (int32_t lane = 0; lane < 100; ++lane) pieces.push_back({lane, 0, lane, 1});
  const ChunkDecodeGrid grid{.num_lanes = 100};
  std::vector<int32_t> tiles{100};
  const double before_us = kTileUs + kTaskUs + kTimes.state_us + kTimes.merge_us;
  // Bundles of 8, which is 100 / 13 rounded up, and then 13 of them.
  EXPECT_DOUBLE_EQ(UsOf(pieces, tiles, false, grid),
                   before_us + AddStatesUs(8, kGroup) + kTimes.merge_us + AddStatesUs(13, kGroup));
  tiles.resize(2, 0);
  EXPECT_DOUBLE_EQ(UsOf(pieces, tiles, false, grid), before_us + AddStatesUs(100, kGroup));
}

// 14 clusters of 16: two for each of seven equal sequences, two of them for one, or one for each of
// three, which leaves no states.
TEST(ChunkDecodeTimesTest, PartsOfClustersAreDealtEquallyAndReadByTheClustersThatHaveTiles) {
  const ChunkDecodeGrid clusters{.num_lanes = 224, .cluster_lanes = 16, .takes_parts = true};
  const double cluster_us = kTimes.cluster_us + kTimes.large_cluster_us +
                            kGroup * kTimes.cluster_row_us + 224.0 / 264 * kTimes.cluster_crowd_us;
  const double parts_us = kTimes.state_us + kTimes.merge_us + kTimes.part_row_us;
  for (const auto& [num_seqs, length, blocks, more_us] :
       {std::tuple{7, 2000, 224, parts_us}, {1, 2000, 32, parts_us}, {3, 1000, 48, 0.0}}) {
    const ChunkDecodeLoad load{num_seqs, length, int64_t{num_seqs} * length};
    const double tiles = load.tokens / 64 + (num_seqs + 1) / 2;
    const double memory_us =
        tiles / 264 * kTimes.memory_tile_us * std::pow(264.0 / blocks, kTimes.parts_reading);
    EXPECT_DOUBLE_EQ(GridUs(load, clusters, {264}, 128, kGroup),
                     cluster_us + more_us + WithMemoryUs(kTimes.cluster_tile_us, memory_us))
        << num_seqs << " of " << length;
  }
  // Three parts in clusters of eight: with 16 rows of a KV head each block merges two of them.
  const ChunkDecodeGrid eights{.num_lanes = 240, .cluster_lanes = 8, .takes_parts = true};
  const ChunkDecodeLoad long_one{1, 3 * 8 * 64, 3 * 8 * 64};
  EXPECT_NEAR(GridUs(long_one, eights, {264}, 128, 16) - GridUs(long_one, eights, {264}, 128, 8),
              8 * kTimes.cluster_row_us + 2 * kTimes.part_row_us, 1e-9);
}

// 60 clusters of eight, of which 30 run at once: in one wave 20 equal sequences have a cluster
// each, and in two a few have three.
TEST(ChunkDecodeTimesTest, ASecondWaveOfClustersTakesItsOwnTime) {
  const ChunkDecodeGrid two{.num_lanes = 480, .cluster_lanes = 8, .takes_parts = true, .waves = 2};
  const ChunkDecodeGrid one{.num_lanes = 240, .cluster_lanes = 8, .takes_parts = true};
  const ChunkDecodeLoad equal{20, 3 * 8 * 64, 20 * 3 * 8 * 64};
  EXPECT_EQ(GridUs(equal, two, {264}, 128, kGroup), GridUs(equal, one, {264}, 128, kGroup));
  // 54 clusters have six tiles a block, and the longest sequence has 34 of them.
  const ChunkDecodeLoad skewed{20, 1600 * 64, 1640 * 64};
  const double tiles = 1650, used = 54 * 8;
  EXPECT_NEAR(GridUs(skewed, two, {264}, 128, kGroup),
              2 * (kTimes.cluster_us + kGroup * kTimes.cluster_row_us) + kTimes.state_us +
                  kTimes.merge_us + 33 * kTimes.part_row_us +
                  240.0 / 264 * kTimes.cluster_crowd_us +
                  WithMemoryUs((6 + kTimes.wave_tiles + tiles / used) * kTimes.cluster_tile_us,
                               tiles / 264 * kTimes.memory_tile_us *
                                   std::pow(264 / (used / 2), kTimes.parts_reading)),
              1e-9);
  EXPECT_LT(GridUs(skewed, two, {264}, 128, kGroup), GridUs(skewed, one, {264}, 128, kGroup));
}

// Clusters whose blocks have a tile each: the more there are, the longer each takes.
TEST(ChunkDecodeTimesTest, CrowdedClustersTakeLonger) {
  struct Case {
    int32_t lanes, count;
  };
  for (const Case& of : {Case{16, 1}, {16, 14}, {8, 15}, {8, 30}, {2, 132}}) {
    const int32_t blocks = of.count * of.lanes;
    const ChunkDecodeGrid clusters{.num_lanes = blocks, .cluster_lanes = of.lanes};
    const ChunkDecodeLoad load{of.count, 64 * of.lanes, int64_t{64} * blocks};
    const double tiles = blocks + (of.count + 1) / 2, all = 264;
    const double memory_us =
        tiles / all * kTimes.memory_tile_us * std::pow(all / blocks, kTimes.cluster_reading);
    EXPECT_NEAR(GridUs(load, clusters, {264}, 128, kGroup),
                kTimes.cluster_us + (of.lanes == 16 ? kTimes.large_cluster_us : 0) +
                    kGroup * kTimes.cluster_row_us + blocks / all * kTimes.cluster_crowd_us +
                    WithMemoryUs(kTimes.cluster_tile_us, memory_us),
                1e-9)
        << of.count << " of " << of.lanes;
  }
}

// 256 blocks of head_dim 64 lie on about 120 SMs, some of which have three and others two.
TEST(ChunkDecodeTimesTest, UnevenSmsDelayClustersOfShortHeads) {
  const ChunkDecodeGrid clusters{.num_lanes = 256, .cluster_lanes = 4};
  const ChunkDecodeLoad load{64, 64 * 4 * 12, int64_t{64} * 64 * 4 * 12};
  const double tiles = 64 * 4 * 12 + 32, all = 528, of_sm = 256 * 4 * 1.1 / all;
  const double memory_us = tiles / all * kTimes.memory_tile_us *
                           std::pow(all / 256, kTimes.cluster_reading) *
                           (1 + kTimes.cluster_uneven * (3 / of_sm - 1));
  EXPECT_NEAR(GridUs(load, clusters, {528}, 64, kGroup),
              kTimes.cluster_us + kGroup * kTimes.cluster_row_us +
                  256 / all * kTimes.cluster_crowd_us +
                  WithMemoryUs(12 * kTimes.cluster_half_tile_us, memory_us),
              1e-9);
}

// 33 lanes read 330 tiles of four sequences: nine lanes read the longest if all are equal, and 30
// if it has 300 tiles.
TEST(ChunkDecodeTimesTest, EqualSharesLeaveMoreStatesOfTheLongestSequence) {
  const int64_t tokens = 330 * kChunkDecodeTileTokens;
  const auto us = [&](int64_t longest) {
    return LanesUs({4, longest, tokens}, {.num_lanes = 33}, kGroup);
  };
  EXPECT_NEAR(us(300 * kChunkDecodeTileTokens) - us(tokens / 4),
              AddStatesUs(30, kGroup) - AddStatesUs(9, kGroup), 1e-9);
  EXPECT_GT(AddStatesUs(30, kGroup), AddStatesUs(9, kGroup));
}

// Few sequences get clusters or lanes, as many as there are warps get warps of their own, whose
// time grows with the longest sequence and then with the memory's.
TEST(ChunkDecodeTimesTest, WarpsEndWithTheLongestSequenceOrWithTheMemory) {
  const ChunkDecodeGrid warps{.num_lanes = 132, .cluster_lanes = 1, .block_lanes = 4};
  const auto us = [&](int32_t num_seqs, int64_t longest, int64_t tokens) {
    return WarpsUs({num_seqs, longest, tokens}, warps, {33}, 2) - kTimes.warp_us;
  };
  // The first tokens come while the task begins, so that a tile takes two times 40 / 64.
  const double of_tile_us = 40.0 / 64 * kTimes.warp_tile_us;
  EXPECT_NEAR(us(1, 64, 64), kTimes.warp_task_us + of_tile_us, 0.01);
  EXPECT_NEAR(us(2, 64, 65), kTimes.warp_task_us + of_tile_us, 0.01);
  EXPECT_NEAR(us(132, 6400, 132 * 6400),
              kTimes.warp_task_us + WithMemoryUs((6400 - 24) / 64.0 * kTimes.warp_tile_us,
                                                 100 * 4 * kTimes.memory_tile_us),
              0.01);
  EXPECT_NEAR(us(133, 1, 133), 2 * kTimes.warp_task_us, 0.2);
}

}  // namespace
}  // namespace tokline::testing
