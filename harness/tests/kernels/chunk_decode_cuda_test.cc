// chunk_decode on the device: against the reference for every grid, cluster and split, bit by bit
// where the result is exact, and against the error of the plain algorithm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numbers>

#include "harness/tests/kernels/chunk_decode_cuda_case.h"

namespace tokline::testing {
namespace {

using ChunkDecodeCudaTest = CudaTest;

// With the grid of the plan, and with the full grid.
class ChunkDecodeGridCudaTest : public CudaTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    takes_full_grid = GetParam();
    CudaTest::SetUp();
  }
  void TearDown() override { takes_full_grid = false; }
};

INSTANTIATE_TEST_SUITE_P(Grids, ChunkDecodeGridCudaTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Full" : "Chosen"; });

TEST_P(ChunkDecodeGridCudaTest, EveryGroupSizeDtypeAndHeadDimMatchesReference) {
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    for (int32_t head_dim : {64, 128}) {
      for (int32_t group = 1; group <= 16; ++group) {
        SCOPED_TRACE(StrCat(Name(dtype), " head_dim ", head_dim, " group ", group));
        DecodeCaseOptions options;
        options.dtype = dtype;
        options.head_dim = head_dim;
        options.group = group;
        options.seed = static_cast<uint64_t>(group);
        ExpectMatches(WithLengths(options, {200, 1, 77}));
      }
    }
  }
}

TEST_P(ChunkDecodeGridCudaTest, RaggedLastPageMatchesReference) {
  DecodeCaseOptions options;
  for (int32_t page_size : {16, 32, 64, 128, 256}) {
    for (KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      SCOPED_TRACE(StrCat("page_size ", page_size, " order ", static_cast<int>(order)));
      options.page_size = page_size;
      options.order = order;
      ExpectMatches(WithLengths(options, {1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300}));
    }
  }
}

TEST_P(ChunkDecodeGridCudaTest, EmptySequencesGiveZeroAndMinusInfinity) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {0, 40, 0, 0}));
  const DecodeResult result = RunCuda(decode);
  for (int32_t seq : {0, 2, 3}) {
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(result.lse[seq * 8 + i], -INFINITY);
      for (int64_t d = 0; d < 128; ++d) EXPECT_EQ(result.out[(seq * 8 + i) * 128 + d], 0);
    }
  }
  EXPECT_TRUE(MatchesReference(result, RunReference(decode), decode));
}

TEST_P(ChunkDecodeGridCudaTest, BatchOfOnlyEmptySequences) {
  DecodeCaseOptions options;
  options.chunk_lengths = {0};
  options.sequences = {{}, {0}};
  DecodeCase decode = MakeDecodeCase(options);
  const DecodeResult result = RunCuda(decode);
  for (int64_t i = 0; i < result.out.size(); ++i) ASSERT_EQ(result.out[i], 0);
}

// Scores so far apart that the softmax is one-hot: the output is one V row, bit by bit. Finds a
// wrong page, slot, head or stride.
TEST_P(ChunkDecodeGridCudaTest, NeedleIsCopiedBitwise) {
  for (KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
    for (int32_t page_size : {16, 64}) {
      DecodeCaseOptions options;
      options.order = order;
      options.page_size = page_size;
      options.group = 5;
      DecodeCase decode = MakeDecodeCase(WithLengths(options, {333, 64, 1, 130}));
      std::mt19937_64 rng(11);
      SetKeysFarApart(decode, rng);
      const ChunkTableView table = decode.table.View();
      std::vector<int64_t> value_at(static_cast<size_t>(decode.Rows()));
      for (int32_t s = 0; s < 4; ++s) {
        for (int32_t head = 0; head < 10; ++head) {
          const int32_t length = table.chunk_lengths[s];
          const int32_t t = head == 0 ? length - 1 : static_cast<int32_t>(rng() % length);
          const int64_t page = table.chunk_pages[table.chunk_page_indptr[s] + t / page_size];
          const int64_t key = decode.layout.KeyOffset(page, head / 5, t % page_size);
          value_at[s * 10 + head] = decode.layout.ValueOffset(page, head / 5, t % page_size);
          for (int32_t d = 0; d < 128; ++d) {
            decode.q.Set((int64_t{s} * 10 + head) * 128 + d, decode.kv[key + d]);
          }
        }
      }
      const DecodeResult result = RunCuda(decode);
      for (int64_t r = 0; r < decode.Rows(); ++r) {
        for (int32_t d = 0; d < 128; ++d) {
          ASSERT_EQ(result.out[r * 128 + d], decode.kv[value_at[r] + d])
              << "row " << r << " dim " << d << " page_size " << page_size;
        }
      }
    }
  }
}

TEST_P(ChunkDecodeGridCudaTest, UniformScoresGiveTheMeanBitwise) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {64, 1024, 2}));
  decode.q = HostTensor(DType::kBf16, decode.q.size());
  std::mt19937_64 rng(5);
  for (int64_t i = 0; i < decode.kv.size(); ++i) {
    decode.kv.Set(i, static_cast<int>(rng() % 17) - 8);
  }
  EXPECT_TRUE(RunCuda(decode).out == RunReference(decode).out);
}

// One token without a value outweighs each of the others by 2^22.3. With the largest weight at 1,
// fp16 would round the others' to few digits: 8 % too low in a warp that reads them all.
TEST_P(ChunkDecodeGridCudaTest, Fp16KeepsWeightsFarBelowTheLargest) {
  DecodeCaseOptions options;
  options.dtype = DType::kF16;
  DecodeCase decode = MakeDecodeCase(WithLengths(options, {8193, 90}));
  for (int64_t i = 0; i < decode.q.size(); ++i) decode.q.Set(i, 1);
  const double heavy = 22.3 / (std::sqrt(128.0) * std::numbers::log2e);
  ForEachToken(decode, [&](int32_t, int32_t token, int64_t page, int32_t row) {
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t d = 0; d < 128; ++d) {
        decode.kv.Set(decode.layout.KeyOffset(page, h, row) + d, token == 0 ? heavy : 0);
        decode.kv.Set(decode.layout.ValueOffset(page, h, row) + d, token == 0 ? 0 : 1);
      }
    }
  });
  const DecodeResult actual = RunCuda(decode), expected = RunReference(decode);
  for (int64_t r = 0; r < decode.Rows(); ++r) {
    ASSERT_NEAR(actual.out[r * 128], expected.out[r * 128], 0.005 * expected.out[r * 128]) << r;
    ASSERT_NEAR(actual.lse[r], expected.lse[r], 1e-4) << r;
  }
}

// All scores are -46,341: what stands for a masked column must lie below any score there is.
TEST_P(ChunkDecodeGridCudaTest, HugeNegativeScoresLeaveOnlyLiveTokens) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {5, 70, 1}));
  for (int64_t i = 0; i < decode.q.size(); ++i) decode.q.Set(i, -64);
  ForEachToken(decode, [&](int32_t, int32_t, int64_t page, int32_t row) {
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t d = 0; d < 128; ++d)
        decode.kv.Set(decode.layout.KeyOffset(page, h, row) + d, 64);
    }
  });
  EXPECT_TRUE(MatchesReference(RunCuda(decode), RunReference(decode), decode));
}

// Of scores of 2^24 and more in base 2, a float has no bits below 1.
TEST_P(ChunkDecodeGridCudaTest, EqualScoresWithoutFractionGiveTheMean) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    DecodeCase decode = MakeDecodeCase(WithLengths({.dtype = dtype}, {5, 400, 1}));
    for (const int value : {1024, 1344, 1984}) {
      SCOPED_TRACE(StrCat(Name(dtype), ", value ", value));
      SetEqualScores(decode, value);
      EXPECT_TRUE(MatchesReference(RunCuda(decode), RunReference(decode), decode));
    }
  }
}

TEST_P(ChunkDecodeGridCudaTest, PagePermutationChangesNothing) {
  DecodeCaseOptions options = WithLengths({}, {500, 90, 3});
  DecodeCase a = MakeDecodeCase(options);
  options.page_seed = 99;
  DecodeCase b = MakeDecodeCase(options);
  const DecodeResult x = RunCuda(a), y = RunCuda(b);
  EXPECT_TRUE(x.out == y.out);
  EXPECT_EQ(x.lse, y.lse);
}

TEST_P(ChunkDecodeGridCudaTest, DeadSlotsChangeNothing) {
  DecodeCaseOptions options = WithLengths({}, {500, 90, 3});
  DecodeCase a = MakeDecodeCase(options);
  options.nan_in_dead_slots = false;  // zeros there instead
  DecodeCase b = MakeDecodeCase(options);
  const DecodeResult x = RunCuda(a), y = RunCuda(b);
  EXPECT_TRUE(x.out == y.out);
  EXPECT_EQ(x.lse, y.lse);
}

// A lane has several tasks, whose states do or do not fit a stage.
TEST_F(ChunkDecodeCudaTest, AnySplitMatchesReference) {
  for (int32_t head_dim : {64, 128}) {
    for (int32_t group : {4, 13, 14, 15, 16}) {
      const DecodeCaseOptions options = WithLengths({.head_dim = head_dim, .group = group},
                                                    {1500, 70, 640, 0, 5, 64, 1, 200, 30, 0, 900});
      for (int32_t lanes : {1, 2, 3, 7, 16, 40, 100}) {
        SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group, ", lanes ", lanes));
        ExpectMatches(options, {.grid = {.num_lanes = lanes}});
      }
    }
  }
}

// More tasks in a lane than its block keeps, without KV or of up to four tiles.
TEST_F(ChunkDecodeCudaTest, ManyShortTasksOfALaneMatchReference) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 100; ++i) lengths.push_back(std::array{1, 64, 0, 65, 130, 200}[i % 6]);
  for (const int32_t lanes : {1, 2, 9}) {
    for (const bool dependent : {false, true}) {
      SCOPED_TRACE(StrCat(lanes, " lanes, dependent ", dependent));
      ExpectMatches(WithLengths({}, lengths),
                    {.grid = {.num_lanes = lanes}, .launches = 2, .dependent = dependent});
    }
  }
}

// Sequences of which every tile is a partial state, which are added in bundles of several sizes, by
// warps that share a row or have several; and with so few lanes that one block adds a sequence's.
TEST_F(ChunkDecodeCudaTest, ManyPartialStatesMatchReference) {
  const auto check = [](int32_t head_dim, int32_t group, int32_t lanes) {
    SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group, ", lanes ", lanes));
    ExpectMatches(
        WithLengths({.head_dim = head_dim, .group = group, .page_size = 64}, kManyStatesLengths),
        {.grid = {.num_lanes = lanes}, .launches = 3, .dependent = true});
  };
  for (int32_t head_dim : {64, 128}) {
    for (int32_t group : {1, 2, 4, 9, 16}) check(head_dim, group, kManyStatesLanes);
    for (int32_t group : {2, 16}) check(head_dim, group, 60);
  }
}

// Sequences that are much longer than the others are read in parts: their states are added in
// pairs, the last of which may be alone, by the warp that comes last.
TEST_F(ChunkDecodeCudaTest, PartsOfWarpsMatchReference) {
  std::vector<int32_t> lengths(90, 20);
  for (int32_t i = 0; i < 90; i += 7) lengths[static_cast<size_t>(i)] = 3 * i;
  lengths[11] = 1984;
  lengths[50] = 1400;
  lengths[51] = 0;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const int32_t group : {1, 2, 5, 8, 9, 16}) {
        DecodeCase decode = MakeDecodeCase(
            WithLengths({.dtype = dtype, .head_dim = head_dim, .group = group}, lengths));
        const DecodeResult reference = RunReference(decode);
        for (const int32_t lanes : {60, 132, 600}) {
          const ChunkDecodeGrid grid{.num_lanes = lanes, .block_lanes = 4, .takes_parts = true};
          SCOPED_TRACE(StrCat(Name(dtype), ", head_dim ", head_dim, ", group ", group, ", ", grid));
          ExpectMatchesAloneAndInAChain(decode, reference, grid);
        }
      }
    }
  }
}

// Lanes without tiles, with fewer tiles than the ring has stages and with more; groups that the
// lanes of a cluster do not divide; sequences without KV in the clusters of others; shifts; parts
// of sequences, whose states are added by the block of each rank that comes last.
TEST_F(ChunkDecodeCudaTest, AnyClusterMatchesReference) {
  if (!QueryDeviceFacts().HasClusters()) GTEST_SKIP() << "needs clusters";
  const std::vector<int32_t> lengths{1, 700, 0, 65, 1000, 3000, 0};
  for (int32_t head_dim : {64, 128}) {
    for (int32_t group : {1, 2, 5, 8, 9, 16}) {
      DecodeCaseOptions options = WithLengths({.head_dim = head_dim, .group = group}, lengths);
      options.shifts = {{0}, {-50}, {0}, {0}, {30}, {0}, {0}};
      DecodeCase decode = MakeDecodeCase(options);
      const DecodeResult reference = RunReference(decode);
      for (const int32_t lanes : {2, 3, 4, 5, 6, 7, 8, 11, 16}) {
        if (lanes > QueryDeviceFacts().max_cluster_blocks) continue;
        for (const ChunkDecodeGrid& grid :
             {ChunkDecodeGrid{.num_lanes = lanes * 7, .cluster_lanes = lanes},
              {.num_lanes = lanes * 9, .cluster_lanes = lanes, .takes_parts = true},
              {.num_lanes = lanes * 30, .cluster_lanes = lanes, .takes_parts = true},
              {.num_lanes = lanes * 18, .cluster_lanes = lanes, .takes_parts = true, .waves = 2}}) {
          SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group, ", ", grid));
          ExpectMatchesAloneAndInAChain(decode, reference, grid, true);
        }
      }
    }
  }
}

// The shares of a cluster's blocks, and the parts of a sequence, begin and end in any of its
// chunks.
TEST_F(ChunkDecodeCudaTest, ClustersReadSequencesOfSeveralChunks) {
  if (QueryDeviceFacts().max_cluster_blocks < 16) GTEST_SKIP() << "needs clusters of 16 blocks";
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      DecodeCaseOptions options{.dtype = dtype, .head_dim = head_dim, .group = 5};
      options.chunk_lengths = {700, 65, 1300};
      options.sequences = {{0, 1, 2}};
      DecodeCase decode = MakeDecodeCase(options);
      const DecodeResult reference = RunReference(decode);
      for (const ChunkDecodeGrid& grid :
           {ChunkDecodeGrid{.num_lanes = 8, .cluster_lanes = 8},
            {.num_lanes = 32, .cluster_lanes = 16},
            {.num_lanes = 32, .cluster_lanes = 16, .takes_parts = true},
            {.num_lanes = 20, .cluster_lanes = 2, .takes_parts = true}}) {
        SCOPED_TRACE(StrCat(Name(dtype), ", head_dim ", head_dim, ", ", grid));
        ExpectMatchesAloneAndInAChain(decode, reference, grid);
      }
    }
  }
}

// Warps without a task, with one and with several; tasks without KV between them; fewer tokens than
// the ring has stages and more.
TEST_F(ChunkDecodeCudaTest, AnyGridOfWarpsMatchesReference) {
  const std::vector<int32_t> lengths{1, 700, 0, 65, 1000, 16, 0, 0, 17, 33, 49, 3000, 2, 0};
  for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const int32_t group : {1, 5, 8, 9, 16}) {
        DecodeCaseOptions options = WithLengths(
            {.head_dim = head_dim, .num_kv_heads = 3, .group = group, .order = order}, lengths);
        options.shifts.assign(lengths.size(), {0});
        for (const int32_t s : {1, 3, 9}) options.shifts[s] = {s * 20 - 50};
        DecodeCase decode = MakeDecodeCase(options);
        const DecodeResult reference = RunReference(decode);
        for (const int32_t lanes : {4, 8, 20}) {
          SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group, ", lanes ", lanes));
          const ChunkDecodeGrid grid{.num_lanes = lanes, .cluster_lanes = 1, .block_lanes = 4};
          ExpectMatchesAloneAndInAChain(decode, reference, grid, true);
        }
      }
    }
  }
}

// Small problems that run every kernel, with rings that wrap and states that are merged in all
// ways. The sanitizer's slow tools run this one instead of the tests of many shapes.
TEST_F(ChunkDecodeCudaTest, EveryKernelOnceMatchesReference) {
  const DeviceFacts device = QueryDeviceFacts();
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 5, 16}) {
      const DecodeCaseOptions options =
          WithLengths({.head_dim = head_dim, .group = group}, {400, 0, 1, 65, 20, 0, 200});
      for (const ChunkDecodeGrid& grid :
           {ChunkDecodeGrid{.num_lanes = 3},
            {.num_lanes = 40},
            {.num_lanes = 14, .cluster_lanes = 2},
            {.num_lanes = 56, .cluster_lanes = 8},
            {.num_lanes = 63, .cluster_lanes = 9},
            {.num_lanes = 20, .cluster_lanes = 2, .takes_parts = true},
            {.num_lanes = 32, .cluster_lanes = 2, .takes_parts = true, .waves = 2},
            {.num_lanes = 4, .block_lanes = 4},
            {.num_lanes = 60, .block_lanes = 4, .takes_parts = true}}) {
        if (grid.cluster_lanes > (device.HasClusters() ? device.max_cluster_blocks : 1)) continue;
        SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group, ", ", grid));
        ExpectMatches(options, {.grid = grid});
      }
    }
    for (const int32_t group : {2, 16}) {
      SCOPED_TRACE(StrCat("bundles, head_dim ", head_dim, ", group ", group));
      ExpectMatches(
          WithLengths({.head_dim = head_dim, .group = group, .page_size = 64}, kManyStatesLengths),
          {.grid = {.num_lanes = kManyStatesLanes}});
    }
    DecodeCaseOptions shared{.head_dim = head_dim, .group = 5};
    shared.chunk_lengths = {300, 30};
    for (int32_t s = 0; s < 20; ++s) shared.sequences.push_back({0});
    shared.sequences.push_back({0, 1});
    for (const ChunkDecodeGrid& grid : {ChunkDecodeGrid{.num_lanes = 3},
                                        {.num_lanes = 3, .run_lanes = 2},
                                        {.num_lanes = 8, .block_lanes = 4, .run_lanes = 2}}) {
      if (grid.run_lanes > 0 && !device.HasHopperCode()) continue;
      SCOPED_TRACE(StrCat("shared, head_dim ", head_dim, ", ", grid));
      ExpectMatches(shared, {.sharing = ChunkSharing::kAlways, .grid = grid});
    }
  }
}

// The largest clusters, apart: synccheck reports missing waits in any program that launches several
// clusters of 16 (kernels/chunk_decode/README.md), so it runs this kernel in clusters of 9 above.
TEST_F(ChunkDecodeCudaTest, LargestClustersMatchReference) {
  if (QueryDeviceFacts().max_cluster_blocks < 16) GTEST_SKIP() << "needs clusters of 16 blocks";
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 5, 16}) {
      SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group));
      ExpectMatches(
          WithLengths({.head_dim = head_dim, .group = group}, {400, 0, 1, 65, 20, 0, 200}),
          {.grid = {.num_lanes = 112, .cluster_lanes = 16}});
    }
  }
}

// Otherwise the last blocks would wait for the first ones to end, as those of a later wave do.
TEST_F(ChunkDecodeCudaTest, TheBlocksOfEveryGridRunAtTheSameTime) {
  const DeviceFacts device = QueryDeviceFacts();
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const int32_t num_kv_heads : {1, 3, 8}) {
        for (const int32_t num_seqs : {1, 7, 40}) {
          ChunkDecodeParams params;
          params.dtype = dtype;
          params.num_q_heads = 4 * num_kv_heads;
          params.scale = 1;
          params.layout = {.num_pages = 1, .num_kv_heads = num_kv_heads, .head_dim = head_dim};
          params.q_stride = params.out_stride = int64_t{params.num_q_heads} * head_dim;
          params.table.num_seqs = num_seqs;
          for (const ChunkDecodeGrid& grid : ChunkDecodeGrids(num_seqs, params.layout, device)) {
            params.plan.grid = grid;
            EXPECT_LE(grid.LanesAtOnce() / grid.block_lanes * num_kv_heads, ResidentBlocks(params))
                << "head_dim " << head_dim << ", " << num_kv_heads << " KV heads, " << grid;
          }
        }
      }
    }
  }
}

// A dependent launch loads its first tiles while the launch before still writes the last token.
TEST_F(ChunkDecodeCudaTest, TheLaunchBeforeMayWriteTheLastToken) {
  const DeviceFacts device = QueryDeviceFacts();
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t length : {1, 15, 64, 65, 128, 129, 192, 193, 700, 2000}) {
      DecodeCase decode = MakeDecodeCase(
          WithLengths({.head_dim = head_dim, .num_kv_heads = 1, .group = 1}, {length}));
      for (const ChunkDecodeGrid& grid :
           {ChunkDecodeGrid{1, 1, 1},
            {2, 2, 1},
            {4, 4, 1},
            {4, 1, 4},
            {.num_lanes = 32, .cluster_lanes = 16},
            {.num_lanes = 32, .cluster_lanes = 16, .takes_parts = true},
            {.num_lanes = 20, .cluster_lanes = 2, .takes_parts = true}}) {
        if (grid.cluster_lanes > (device.HasClusters() ? device.max_cluster_blocks : 1)) continue;
        const bool has_parts = length > grid.cluster_lanes * kChunkDecodeTileTokens;
        if (grid.takes_parts && !has_parts) continue;
        SCOPED_TRACE(StrCat("head_dim ", head_dim, ", length ", length, ", ", grid));
        const DecodeResult plain = RunCuda(decode, {.grid = grid, .writes_last_key = true});
        EXPECT_NE(plain.lse, RunCuda(decode, {.grid = grid}).lse) << "the last token has no effect";
        for (int repeat = 0; repeat < 5; ++repeat) {
          const DecodeResult chain =
              RunCuda(decode, {.grid = grid, .dependent = true, .writes_last_key = true});
          EXPECT_TRUE(plain.out == chain.out);
          EXPECT_EQ(plain.lse, chain.lse);
        }
      }
    }
  }
}

// No launch may read a query before that.
TEST_F(ChunkDecodeCudaTest, TheLaunchBeforeMayWriteTheQueries) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t group : {1, 9}) {
      DecodeCase decode = MakeDecodeCase(
          WithLengths({.head_dim = head_dim, .num_kv_heads = 1, .group = group}, {65, 3, 700}));
      for (const ChunkDecodeGrid& grid :
           {ChunkDecodeGrid{1, 1, 1}, {3, 1, 1}, {24, 8, 1}, {4, 1, 4}}) {
        if (grid.cluster_lanes > 1 && !QueryDeviceFacts().HasClusters()) continue;
        SCOPED_TRACE(StrCat("head_dim ", head_dim, ", group ", group, ", ", grid));
        const DecodeResult plain = RunCuda(decode, {.grid = grid, .writes_query = true});
        EXPECT_FALSE(plain.out == RunCuda(decode, {.grid = grid}).out);
        for (int repeat = 0; repeat < 5; ++repeat) {
          const DecodeResult chain =
              RunCuda(decode, {.grid = grid, .dependent = true, .writes_query = true});
          EXPECT_TRUE(plain.out == chain.out);
          EXPECT_EQ(plain.lse, chain.lse);
        }
      }
    }
  }
}

// Whatever lies before a sequence in its lane.
TEST_F(ChunkDecodeCudaTest, EqualSequencesInALaneHaveEqualBits) {
  DecodeCaseOptions options;
  options.chunk_lengths = {80};
  options.sequences = {{0}, {0}, {0}};
  DecodeCase decode = MakeDecodeCase(options);
  const int64_t row = int64_t{decode.num_q_heads} * decode.layout.head_dim;
  for (int64_t i = row; i < 3 * row; ++i) decode.q.Set(i, decode.q[i % row]);
  const DecodeResult result =
      RunCuda(decode, {.sharing = ChunkSharing::kNever, .grid = {.num_lanes = 1}});
  for (int64_t i = row; i < 3 * row; ++i) ASSERT_EQ(result.out[i], result.out[i % row]) << i;
}

TEST_P(ChunkDecodeGridCudaTest, SameInputsGiveTheSameBitsEveryTime) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {4000, 70, 640}));
  const DecodeResult first = RunCuda(decode);
  for (int i = 0; i < 20; ++i) {
    const DecodeResult again = RunCuda(decode, {.launches = 3, .dependent = i % 2 == 1});
    ASSERT_TRUE(first.out == again.out) << "run " << i;
    ASSERT_EQ(first.lse, again.lse) << "run " << i;
  }
  for (const int32_t lanes : {2, 7}) {
    const DecodeResult once = RunCuda(decode, {.grid = {.num_lanes = lanes}});
    const DecodeResult chain =
        RunCuda(decode, {.grid = {.num_lanes = lanes}, .launches = 3, .dependent = true});
    EXPECT_TRUE(once.out == chain.out) << lanes << " lanes";
    EXPECT_EQ(once.lse, chain.lse) << lanes << " lanes";
  }
}

TEST_P(ChunkDecodeGridCudaTest, LongContextMatchesReference) {
  DecodeCaseOptions options;
  options.num_kv_heads = 1;
  options.group = 2;
  options.page_size = 256;
  options.nan_in_dead_slots = false;
  ExpectMatches(WithLengths(options, {131072}));
}

// Parts of one sequence for all clusters of 16 or of 8, and for all warps.
TEST_F(ChunkDecodeCudaTest, LongContextInPartsMatchesReference) {
  const DeviceFacts device = QueryDeviceFacts();
  DecodeCase decode = MakeDecodeCase(WithLengths(
      {.num_kv_heads = 1, .group = 2, .page_size = 256, .nan_in_dead_slots = false}, {131072}));
  const DecodeResult reference = RunReference(decode);
  ChunkDecodeGrid warps = ChunkDecodeWarpGrid(decode.layout, device);
  warps.takes_parts = true;
  std::vector<ChunkDecodeGrid> grids = {warps};
  for (const int32_t lanes : {8, 16}) {
    if (lanes > (device.HasClusters() ? device.max_cluster_blocks : 1)) continue;
    grids.push_back({.num_lanes = device.sm_count / lanes * lanes,
                     .cluster_lanes = lanes,
                     .takes_parts = true});
  }
  for (const ChunkDecodeGrid& grid : grids) {
    if (grid.num_lanes == 0) continue;  // too little shared memory for warps
    SCOPED_TRACE(StrCat(grid));
    ExpectMatchesAloneAndInAChain(decode, reference, grid);
  }
}

// Offsets past 2^31 elements and 4 GiB: a 32-bit offset reads the wrong page or faults.
TEST_P(ChunkDecodeGridCudaTest, PagesPast4GiBAreFound) {
  DecodeCaseOptions options;
  options.num_kv_heads = 8;
  options.page_size = 256;
  DecodeCase decode = MakeDecodeCase(WithLengths(options, {300, 256}));
  const int64_t page_bytes = decode.layout.PageStride() * 2;
  const int64_t page_offset = (int64_t{9} << 30) / page_bytes;  // past 2^32 elements too
  size_t free_bytes = 0, total_bytes = 0;
  TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < size_t{10} << 30) {
    GTEST_SKIP() << "needs 10 GiB of device memory; " << (free_bytes >> 20) << " MiB are free";
  }
  const DecodeResult actual = RunCuda(decode, {.page_offset = page_offset});
  EXPECT_TRUE(MatchesReference(actual, RunReference(decode), decode));
}

// RMS error against double, beside that of the plain algorithm at the same precision: fp32 scores
// and sums, P rounded to the storage type.
TEST_F(ChunkDecodeCudaTest, ErrorIsAtMostThatOfTheNaiveAlgorithm) {
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    DecodeCaseOptions options;
    options.dtype = dtype;
    options.seed = 17;
    DecodeCase decode = MakeDecodeCase(WithLengths(options, {1000, 400, 2000, 90}));
    const DecodeResult actual = RunCuda(decode);
    // The exact output, not rounded: the reference on fp32 copies of the same values.
    DecodeCase exact = decode;
    exact.options.dtype = DType::kF32;
    exact.q = HostTensor(DType::kF32, decode.q.size());
    exact.kv = HostTensor(DType::kF32, decode.kv.size());
    for (int64_t i = 0; i < decode.q.size(); ++i) exact.q.Set(i, decode.q[i]);
    for (int64_t i = 0; i < decode.kv.size(); ++i) exact.kv.Set(i, decode.kv[i]);
    const DecodeResult truth = RunReference(exact);
    const ChunkTableView table = decode.table.View();
    double kernel_error = 0, naive_error = 0;
    for (int32_t s = 0; s < table.num_seqs; ++s) {
      for (int32_t head = 0; head < decode.num_q_heads; ++head) {
        const int32_t length = table.chunk_lengths[s];
        const int64_t first = (int64_t{s} * decode.num_q_heads + head) * 128;
        std::vector<float> p(static_cast<size_t>(length));
        const auto offset = [&](int32_t t) {
          return decode.layout.KeyOffset(
              table.chunk_pages[table.chunk_page_indptr[s] + t / decode.layout.page_size],
              head / options.group, t % decode.layout.page_size);
        };
        float best = -INFINITY, sum = 0;
        for (int32_t t = 0; t < length; ++t) {
          float score = 0;
          for (int32_t d = 0; d < 128; ++d) {
            score += static_cast<float>(decode.q[first + d]) *
                     static_cast<float>(decode.kv[offset(t) + d]);
          }
          p[t] = score / std::sqrt(128.0f);
          best = std::max(best, p[t]);
        }
        for (float& value : p) sum += value = std::exp(value - best);
        for (int32_t d = 0; d < 128; ++d) {
          float output = 0;
          for (int32_t t = 0; t < length; ++t) {
            output += static_cast<float>(RoundTo(dtype, p[t])) *
                      static_cast<float>(decode.kv[offset(t) + decode.layout.KvStride() + d]);
          }
          naive_error += std::pow(RoundTo(dtype, output / sum) - truth.out[first + d], 2);
          kernel_error += std::pow(actual.out[first + d] - truth.out[first + d], 2);
        }
      }
    }
    EXPECT_LE(std::sqrt(kernel_error), 1.25 * std::sqrt(naive_error)) << Name(dtype);
  }
}

TEST_F(ChunkDecodeCudaTest, UnsupportedDtypeAndSmallWorkspaceAreRefused) {
  DecodeCase decode = MakeDecodeCase(WithLengths({}, {40}));
  HostTensor out(DType::kBf16, decode.q.size());
  std::vector<float> lse(8);
  ChunkDecodeParams params = decode.Params(out, lse);
  params.dtype = DType::kF32;
  EXPECT_THROW(Launch(params, {}), InvalidArgument);
  params.dtype = DType::kBf16;
  EXPECT_THROW(Launch(params, {}), InvalidArgument);  // no plan
  for (const ChunkDecodeGrid& grid :
       {ChunkDecodeGrid{4, 1, 1, 0, true}, {4, 1, 4, 1, true}, {8, 8, 1, 1}, {4, 1, 1, -1}}) {
    params.plan.grid = grid;
    EXPECT_THAT([&] { Launch(params, {}); },
                ::testing::ThrowsMessage<InvalidArgument>(::testing::HasSubstr("plan.grid has")));
  }
}

}  // namespace
}  // namespace tokline::testing
