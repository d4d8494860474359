// chunk_decode on the device where sequences share chunks, read once by lanes or by run lanes.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "harness/tests/kernels/chunk_decode_cuda_case.h"

namespace tokline::testing {
namespace {

using ChunkDecodeCudaTest = CudaTest;

// Sequences that share runs of many rows, which run lanes read: ends of chunks and pages anywhere
// in a tile, members that are no neighbours, members of two runs, and members that read nothing
// else. With `few`, two share a chunk that no run lane reads, too, and nothing else in their own
// lane.
DecodeCaseOptions WithRunsOfMany(DecodeCaseOptions options, int32_t members, bool few) {
  options.chunk_lengths = {700, 333, 429};
  for (int32_t s = 0; s < members; ++s) {
    switch (s % 4) {
      case 0:
        options.sequences.push_back({0, 2});
        break;
      case 1:
        options.sequences.push_back({0, 2, static_cast<int32_t>(options.chunk_lengths.size())});
        options.chunk_lengths.push_back(1 + s * 37 % 150);
        break;
      case 2:
        options.sequences.push_back({0, 2, 1});
        break;
      default:
        options.sequences.push_back({1});
    }
  }
  const auto next = static_cast<int32_t>(options.chunk_lengths.size());
  options.chunk_lengths.push_back(100);
  for (int32_t s = 0; s < 2 && few; ++s) options.sequences.push_back({0, 2, next});
  options.sequences.push_back({});
  return options;
}

TEST_F(ChunkDecodeCudaTest, RunLanesMatchReference) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "needs code for sm_90a";
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const auto& [group, members] : {std::pair{1, 80}, {2, 100}, {5, 60}, {16, 12}}) {
        for (const int32_t block_lanes : {1, 4}) {
          const int32_t page_size = group == 1 ? 16 : group == 2 ? 128 : group == 5 ? 256 : 32;
          DecodeCase decode =
              MakeDecodeCase(WithRunsOfMany({.dtype = dtype,
                                             .head_dim = head_dim,
                                             .group = group,
                                             .page_size = page_size,
                                             .order = group == 5 ? KvOrder::kNhd : KvOrder::kHnd},
                                            members, group <= 8 && block_lanes == 1));
          const DecodeResult reference = RunReference(decode);
          for (const int32_t run_lanes : {1, 3, 40}) {
            const ChunkDecodeGrid grid{
                .num_lanes = 8, .block_lanes = block_lanes, .run_lanes = run_lanes};
            SCOPED_TRACE(
                StrCat(Name(dtype), ", head_dim ", head_dim, ", group ", group, ", ", grid));
            RunOptions run{.sharing = ChunkSharing::kAlways, .grid = grid};
            const DecodeResult once = RunCuda(decode, run);
            EXPECT_TRUE(MatchesReference(once, reference, decode));
            run.launches = 3;
            run.dependent = true;
            const DecodeResult chain = RunCuda(decode, run);
            EXPECT_TRUE(once.out == chain.out);
            EXPECT_EQ(once.lse, chain.lse);
          }
        }
      }
    }
  }
}

// Equal scores of 2^24 and more in base 2, of which a float has no bits below 1: in fp16 the
// weights must stay below 2^16. All states are of run lanes, since those of other lanes round such
// scores differently. With head_dim 128 an offset that is rounded to nearest would give exponents
// of 16 and 16.86 with values of 1024 and 1984, and thus infinite weights.
TEST_F(ChunkDecodeCudaTest, RunLanesTakeScoresThatHaveNoFraction) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "needs code for sm_90a";
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    DecodeCaseOptions options{.dtype = dtype, .head_dim = 128, .group = 2};
    options.chunk_lengths = {700, 429};
    for (int32_t s = 0; s < 40; ++s) options.sequences.push_back({0, 1});
    DecodeCase decode = MakeDecodeCase(options);
    for (const int value : {1024, 1344, 1984}) {
      SetEqualScores(decode, value);
      for (const int32_t run_lanes : {0, 3}) {
        SCOPED_TRACE(StrCat(Name(dtype), ", value ", value, ", run lanes ", run_lanes));
        EXPECT_TRUE(
            MatchesReference(RunCuda(decode, {.sharing = ChunkSharing::kAlways,
                                              .grid = {.num_lanes = 8, .run_lanes = run_lanes}}),
                             RunReference(decode), decode));
      }
    }
  }
}

// Scores so far apart that the softmax is one-hot, with the needle in a shared run: bit by bit, the
// output is one row of V.
TEST_F(ChunkDecodeCudaTest, RunLanesCopyANeedleBitwise) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "needs code for sm_90a";
  DecodeCaseOptions options{.group = 5, .page_size = 64};
  options.chunk_lengths = {1000, 3};
  for (int32_t s = 0; s < 30; ++s) options.sequences.push_back({0, 1});
  DecodeCase decode = MakeDecodeCase(options);
  std::mt19937_64 rng(11);
  SetKeysFarApart(decode, rng);
  const ChunkTableView table = decode.table.View();
  std::vector<int64_t> value_at(static_cast<size_t>(decode.Rows()));
  for (int64_t r = 0; r < decode.Rows(); ++r) {
    const auto t = static_cast<int32_t>(r * 389 % 1000);
    const int64_t page = table.chunk_pages[table.chunk_page_indptr[0] + t / 64];
    const auto head = static_cast<int32_t>(r % 10 / 5);
    value_at[static_cast<size_t>(r)] = decode.layout.ValueOffset(page, head, t % 64);
    for (int64_t d = 0; d < 128; ++d) {
      decode.q.Set(r * 128 + d, decode.kv[decode.layout.KeyOffset(page, head, t % 64) + d]);
    }
  }
  const DecodeResult result =
      RunCuda(decode, {.sharing = ChunkSharing::kAlways, .grid = {.num_lanes = 7, .run_lanes = 5}});
  for (int64_t r = 0; r < decode.Rows(); ++r) {
    for (int64_t d = 0; d < 128; ++d) {
      ASSERT_EQ(result.out[r * 128 + d], decode.kv[value_at[static_cast<size_t>(r)] + d])
          << "row " << r << " dim " << d;
    }
  }
}

TEST_F(ChunkDecodeCudaTest, SharedChunksMatchReadingThemPerSequence) {
  for (int32_t group : {1, 3, 4, 7, 16}) {
    DecodeCaseOptions options;
    options.group = group;
    options.page_size = 64;
    options.chunk_lengths = {700, 333, 20, 1, 65, 128, 0};
    options.sequences = {{0, 1, 2}, {0, 1, 3}, {0, 4}, {0, 1}, {5, 0}, {6, 0, 1, 5},
                         {0},       {2},       {},     {0, 0}, {0, 1}, {0, 1, 4}};
    for (bool share : {false, true}) {
      SCOPED_TRACE(StrCat("group ", group, " share ", share));
      ExpectMatches(options, {.sharing = share ? ChunkSharing::kAlways : ChunkSharing::kNever});
    }
    // Wide tasks between narrow ones in one lane.
    for (const int32_t lanes : {1, 2, 3, 7}) {
      SCOPED_TRACE(StrCat("group ", group, ", lanes ", lanes));
      ExpectMatches(options, {.sharing = ChunkSharing::kAlways, .grid = {.num_lanes = lanes}});
    }
  }
}

// A lane's first tile is the end of a chunk, with tokens for the first warp alone, and then it
// reads the same page from its begin. The others must not take the page that they did not have.
TEST_F(ChunkDecodeCudaTest, ALaneMayBeginWithTheEndOfAPageThatItReadsAgain) {
  DecodeCaseOptions options;
  options.page_size = 256;
  options.chunk_lengths = {200, 70};
  for (options.page_seed = 1;; ++options.page_seed) {  // no chunk lies on page 0
    const DecodeCase decode = MakeDecodeCase(options);
    const int32_t* const pages = decode.table.View().chunk_pages;
    if (pages[0] != 0 && pages[1] != 0) break;
  }
  options.sequences = {{1, 1, 1}};
  if (QueryDeviceFacts().HasClusters()) {
    ExpectMatches(options,
                  {.sharing = ChunkSharing::kNever, .grid = {.num_lanes = 2, .cluster_lanes = 2}});
  }
  options.sequences.assign(64, {0});
  ExpectMatches(options, {.sharing = ChunkSharing::kAlways, .grid = {.num_lanes = 3}});
}

// Four sequences of nine heads have 36 rows, so the last of four warps has none, and could load
// tile after tile while the others compute.
TEST_F(ChunkDecodeCudaTest, AWarpWithoutRowsDoesNotRunAheadOfTheOthers) {
  for (const int32_t head_dim : {64, 128}) {
    SCOPED_TRACE(StrCat("head_dim ", head_dim));
    ExpectMatches({.head_dim = head_dim,
                   .num_kv_heads = 1,
                   .group = 9,
                   .chunk_lengths = {8000, 5, 70, 3},
                   .sequences = {{0, 1}, {0, 2}, {0, 3}, {0}}},
                  {.sharing = ChunkSharing::kAlways, .grid = {.num_lanes = 1}});
  }
}

TEST_F(ChunkDecodeCudaTest, ShiftedChunksMatchReference) {
  DecodeCaseOptions options;
  options.chunk_lengths = {600, 45, 130};
  options.sequences = {{0, 1}, {0, 2}, {2, 0, 1}, {0}};
  options.shifts = {{0, 5}, {-7, 0}, {3, 100, -100}, {2}};
  for (int32_t head_dim : {64, 128}) {
    for (bool share : {false, true}) {
      SCOPED_TRACE(StrCat("head_dim ", head_dim, " share ", share));
      options.head_dim = head_dim;
      ExpectMatches(options, {.sharing = share ? ChunkSharing::kAlways : ChunkSharing::kNever});
    }
  }
}

TEST_F(ChunkDecodeCudaTest, TheLaunchBeforeMayWriteTheQueriesOfRunLanes) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "needs code for sm_90a";
  DecodeCaseOptions options{.num_kv_heads = 1, .group = 1};
  options.chunk_lengths = {1000, 30};
  for (int32_t s = 0; s < 20; ++s) options.sequences.push_back({0});
  options.sequences.push_back({1});
  DecodeCase decode = MakeDecodeCase(options);
  // Of nine run lanes one reads nothing, and where nothing is shared none does.
  for (const ChunkDecodeGrid& grid :
       {ChunkDecodeGrid{2, 1, 1, 1}, {2, 1, 1, 9}, {4, 1, 4, 1}, {4, 1, 4, 9}}) {
    for (const ChunkSharing sharing : {ChunkSharing::kAlways, ChunkSharing::kNever}) {
      SCOPED_TRACE(StrCat(grid, ", sharing ", static_cast<int>(sharing)));
      const RunOptions plain{.sharing = sharing, .grid = grid, .writes_query = true};
      const DecodeResult expected = RunCuda(decode, plain);
      RunOptions run = plain;
      run.writes_query = false;
      EXPECT_FALSE(expected.out == RunCuda(decode, run).out);
      run = plain;
      run.dependent = true;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const DecodeResult chain = RunCuda(decode, run);
        EXPECT_TRUE(expected.out == chain.out);
        EXPECT_EQ(expected.lse, chain.lse);
      }
    }
  }
}

}  // namespace
}  // namespace tokline::testing
