// Which SM reads how much.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "harness/tests/kernels/chunk_decode_plan_case.h"
#include "kernels/chunk_decode/chunk_decode_sms.h"

namespace tokline::testing {
namespace {

// What the SM with the most has, of lanes that have these loads by their numbers.
int64_t MostOfAnSm(std::span<const int64_t> loads, const ChunkDecodeSms& sms) {
  std::vector<int64_t> of_sm(static_cast<size_t>(sms.sm_count), 0);
  for (int32_t lane = 0; lane < std::ssize(loads); ++lane) {
    for (int32_t head = 0; head < sms.kv_heads; ++head) {
      const int32_t block = lane % sms.blocks * sms.kv_heads + head;
      of_sm[static_cast<size_t>(block % sms.sm_count)] += loads[static_cast<size_t>(lane)];
    }
  }
  return std::ranges::max(of_sm);
}

std::vector<int64_t> Numbered(std::span<const int64_t> loads, const ChunkDecodeSms& sms) {
  const std::vector<int32_t> numbers = EvenLaneNumbers(loads, sms);
  std::vector<int64_t> by_number(loads.size(), -1);
  for (size_t lane = 0; lane < loads.size(); ++lane) {
    by_number.at(static_cast<size_t>(numbers[lane])) = loads[lane];
  }
  return by_number;
}

TEST(ChunkDecodeSmsTest, NumbersAreAPermutationThatLeavesNoSmMuchMoreThanTheMean) {
  std::mt19937_64 rng(5);
  for (int round = 0; round < 500; ++round) {
    ChunkDecodeSms sms{.sm_count = 132, .kv_heads = 1 + static_cast<int32_t>(rng() % 32)};
    sms.blocks = 132 * (1 + static_cast<int32_t>(rng() % 4)) / sms.kv_heads;
    const auto lanes = static_cast<size_t>(sms.blocks) * (round % 2 == 0 ? 1 : 4);
    std::vector<int64_t> loads(lanes, 0);
    const uint64_t used = 1 + rng() % lanes, most = 1 + rng() % 60;
    for (size_t i = 0; i < used; ++i) loads[i] = 1 + static_cast<int64_t>(rng() % most);
    std::ranges::shuffle(loads, rng);
    const std::vector<int64_t> numbered = Numbered(loads, sms);
    EXPECT_TRUE(std::ranges::is_permutation(numbered, loads)) << round;
    const double mean =
        static_cast<double>(std::reduce(loads.begin(), loads.end())) * sms.kv_heads / sms.sm_count;
    EXPECT_LE(static_cast<double>(MostOfAnSm(numbered, sms)),
              mean + static_cast<double>(std::ranges::max(loads)))
        << round;
  }
}

TEST(ChunkDecodeSmsTest, LanesAreNotNumberedWorseThanTheyWereDealt) {
  const ChunkDecodeSms sms{.sm_count = 132, .kv_heads = 40, .blocks = 6};
  const std::vector<int64_t> loads{3, 6, 6, 3, 0, 0};  // the rounds alone would give an SM 9
  EXPECT_EQ(MostOfAnSm(Numbered(loads, sms), sms), MostOfAnSm(loads, sms));
}

TEST(ChunkDecodeSmsTest, EqualLanesKeepTheirNumbers) {
  std::vector<int32_t> same(44);
  std::iota(same.begin(), same.end(), 0);
  EXPECT_EQ(
      EvenLaneNumbers(std::vector<int64_t>(44, 7), {.sm_count = 132, .kv_heads = 12, .blocks = 44}),
      same);
  EXPECT_EQ(EvenLaneNumbers(std::vector<int64_t>{1, 2, 0}, {}), (std::vector<int32_t>{0, 1, 2}));
}

// The most tiles that an SM has in a plan.
int64_t MostTilesOfAnSm(std::span<const int32_t> lengths, int32_t group,
                        const PagedKvLayout& layout, const ChunkDecodeGrid& grid) {
  ChunkTable table;
  for (const int32_t length : lengths) {
    const std::vector<int32_t> pages(static_cast<size_t>(DivideUp(length, layout.page_size)), 0);
    const int32_t chunk = table.AddChunk(pages, length);
    table.AddSequence({&chunk, 1});
  }
  return MostOfAnSm(LaneTiles(PlanChunkDecode(table.View(), layout, layout.num_kv_heads * group,
                                              kDevice, {.grid = grid})),
                    ChunkDecodeSmsOf(grid, layout, kDevice));
}

// Drawn shapes in which a third of the SMs had twice as many tiles as the others, or half of them
// all tiles.
TEST(ChunkDecodeSmsTest, PlansThatLeaveLanesWithoutTilesUseAllSms) {
  PagedKvLayout layout{.num_pages = 4096, .num_kv_heads = 12, .page_size = 128, .head_dim = 64};
  const auto most_of = [&](const std::vector<int32_t>& lengths, int32_t group) {
    return MostTilesOfAnSm(lengths, group, layout, ChunkDecodeFullGrid(layout, kDevice));
  };
  EXPECT_LE(most_of(std::vector<int32_t>(15, 4424), 8), 96);
  layout.num_kv_heads = 1;
  EXPECT_LE(most_of(std::vector<int32_t>(256, 287), 11), 10);
  EXPECT_LE(most_of(std::vector<int32_t>(256, 141), 13), 6);
}

// The longest sequences come to SMs of their own, and the shortest ones beside them.
TEST(ChunkDecodeSmsTest, LongLanesShareSmsWithShortOnes) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 256; ++i) lengths.push_back(64 * (1 + i / 16));
  for (const int32_t head_dim : {64, 128}) {
    const PagedKvLayout layout{
        .num_pages = 4096, .num_kv_heads = 1, .page_size = 64, .head_dim = head_dim};
    EXPECT_LE(MostTilesOfAnSm(lengths, 8, layout, ChunkDecodeFullGrid(layout, kDevice)), 19)
        << head_dim;  // 24 as they are dealt
  }
}

// Warps that are lanes, as of a decoder whose sequences have from 300 to 1,600 tokens.
TEST(ChunkDecodeSmsTest, WarpsWithLongSequencesShareSmsWithShortOnes) {
  std::vector<int32_t> lengths;
  int64_t tiles = 0;
  for (int32_t i = 0; i < 131; ++i) {
    lengths.push_back(300 + 10 * i);
    tiles += 8 * DivideUp(lengths.back(), kChunkDecodeTileTokens);
  }
  const int64_t most =
      MostTilesOfAnSm(lengths, 2, kEightHeads, ChunkDecodeWarpGrid(kEightHeads, kDevice));
  EXPECT_LE(static_cast<double>(most), 1.04 * static_cast<double>(tiles) / 132);  // 1.09 as dealt
}

TEST(ChunkDecodeSmsTest, AllWarpsOfABlockRunOnItsSm) {
  // 260 blocks, so that the second warps do not begin where a round over the SMs does.
  const ChunkDecodeSms sms{.sm_count = 132, .kv_heads = 5, .blocks = 52};
  std::mt19937_64 rng(3);
  std::vector<int64_t> loads;
  for (int32_t lane = 0; lane < 4 * sms.blocks; ++lane) {
    loads.push_back(5 + static_cast<int64_t>(rng() % 60));
  }
  const double mean = 5.0 * static_cast<double>(std::reduce(loads.begin(), loads.end())) / 132;
  EXPECT_LE(static_cast<double>(MostOfAnSm(Numbered(loads, sms), sms)), 1.06 * mean);
}

TEST(ChunkDecodeSmsTest, NothingIsKnownOfGridsThatDoNotRunAtOnce) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(kEightHeads, kDevice);
  EXPECT_EQ(ChunkDecodeSmsOf(full, kEightHeads, kDevice).sm_count, kDevice.sm_count);
  EXPECT_EQ(ChunkDecodeSmsOf({.num_lanes = full.num_lanes + 1}, kEightHeads, kDevice).sm_count, 0);
}

}  // namespace
}  // namespace tokline::testing
