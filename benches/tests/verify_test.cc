// Tests the comparison of sampled outputs with the reference, the placement of buffer sets in the
// L2, and the samples of appended pages.
#include "benches/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "benches/append_batch.h"
#include "benches/execution.h"
#include "benches/paged_batch.h"
#include "reference/elements.h"

namespace tokline::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Computes out = factor x, which is simple enough to be made wrong on purpose.
class ScaledCase : public BenchCase {
 public:
  explicit ScaledCase(int64_t rows, Tolerance tolerance = {1, 0}, double factor = 3)
      : rows_(rows), tolerance_(tolerance), factor_(factor) {
    x_ = tensors_.Random(DType::kBf16, rows, kCols);
    out_ = tensors_.Output(DType::kBf16, rows, kCols, tolerance);
  }
  Cost GetCost() const override { return {}; }
  void RunReference(const TensorSet& set) const override {
    for (int64_t i = 0; i < rows_ * kCols; ++i) {
      StoreElement(DType::kBf16, set.At(out_), i,
                   factor_ * LoadElement(DType::kBf16, set.At(x_), i));
    }
  }
  void LaunchCuda(const TensorSet&, const LaunchOptions&) const override {}
  SampledCase Sample(uint64_t seed) const override {
    const std::vector<int64_t> rows = PickIndices(rows_, 4, seed);
    SampledCase sampled(std::make_unique<ScaledCase>(4, tolerance_, factor_));
    sampled.maps = {{.rows = rows}, {.rows = rows}};
    return sampled;
  }

  static constexpr int64_t kCols = 33;
  static constexpr uint64_t kFillSeed = 5;

 private:
  int64_t rows_;
  Tolerance tolerance_;
  double factor_;
  int x_, out_;
};

class VerifyTest : public ::testing::Test {
 protected:
  // Runs the case on both buffer sets, like timed launches.
  void Run(uint64_t seed = ScaledCase::kFillSeed) {
    store_.FillRandom(seed);
    store_.Poison();
    for (int copy = 0; copy < 2; ++copy) case_.RunReference(store_.Set(copy));
  }
  Comparison Compare(int copy = 1) {
    return ExpectedSample(case_, copy, ScaledCase::kFillSeed, /*sample_seed=*/2)
        .CompareWith(store_);
  }
  // Returns element `col` of the first row, which is part of every sample.
  uint16_t& Out(int64_t col) { return store_.Set(1).At<uint16_t>(1)[col]; }

  ScaledCase case_{20};
  TensorStore store_{case_.tensors(), 2, MakeHostMemory()};
};

TEST_F(VerifyTest, RightOutputsPassInEverySet) {
  Run();
  EXPECT_THAT(Compare(0).first_failure, IsEmpty());
  EXPECT_THAT(Compare(1).first_failure, IsEmpty());
  EXPECT_EQ(Compare(1).max_error_over_bound, 0);
}

TEST_F(VerifyTest, OutputsThatWereNotWrittenFail) {
  Run();
  store_.Poison();
  EXPECT_THAT(Compare().first_failure, HasSubstr("nan (not written) instead of"));
  EXPECT_EQ(Compare().max_error_over_bound, kWrong);
}

TEST_F(VerifyTest, OutputsOfEarlierInputsFail) {
  Run(/*seed=*/6);
  EXPECT_GT(Compare().max_error_over_bound, 1);
}

TEST_F(VerifyTest, OneWrongElementFailsAndIsNamed) {
  Run();
  Out(7) = static_cast<uint16_t>(Out(7) + 3);
  const Comparison comparison = Compare();
  EXPECT_THAT(comparison.first_failure, HasSubstr("sampled row 0, column 7"));
  EXPECT_THAT(comparison.first_failure, HasSubstr("seed 5"));
  EXPECT_NEAR(comparison.max_error_over_bound, 3, 0.01);
}

TEST_F(VerifyTest, AnErrorWithinTheBoundIsReportedAndPasses) {
  Run();
  Out(7) = static_cast<uint16_t>(Out(7) + 1);
  EXPECT_THAT(Compare().first_failure, IsEmpty());
  EXPECT_NEAR(Compare().max_error_over_bound, 1, 0.01);
}

TEST_F(VerifyTest, TheLastElementIsComparedToo) {
  Run();
  uint16_t& last = Out(20 * ScaledCase::kCols - 1);
  last = static_cast<uint16_t>(last + 3);
  EXPECT_THAT(Compare().first_failure, HasSubstr("sampled row 3, column 32"));
}

TEST_F(VerifyTest, SmallNumbersHaveSmallBounds) {
  const ScaledCase small(20, {1, 0}, /*factor=*/0x1p-40);
  TensorStore store(small.tensors(), 1, MakeHostMemory());
  store.FillRandom(ScaledCase::kFillSeed);
  small.RunReference(store.Set(0));
  uint16_t& element = store.Set(0).At<uint16_t>(1)[7];
  element = static_cast<uint16_t>(element + 3);
  EXPECT_NEAR(
      ExpectedSample(small, 0, ScaledCase::kFillSeed, 2).CompareWith(store).max_error_over_bound, 3,
      0.01);
}

TEST_F(VerifyTest, ErrorsOfSumsAreHeldAgainstTheRootMeanSquareOfTheirRow) {
  const ScaledCase sums(20, {.ulps = 0, .row_rms = 0.5});
  TensorStore store(sums.tensors(), 1, MakeHostMemory());
  store.FillRandom(ScaledCase::kFillSeed);
  sums.RunReference(store.Set(0));
  uint16_t* row = store.Set(0).At<uint16_t>(1);
  double squares = 0;
  for (int64_t i = 0; i < ScaledCase::kCols; ++i) {
    squares += std::pow(LoadElement(DType::kBf16, row, i), 2);
  }
  const double rms = std::sqrt(squares / ScaledCase::kCols);
  StoreElement(DType::kBf16, row, 7, LoadElement(DType::kBf16, row, 7) + 0.75 * rms);
  EXPECT_NEAR(
      ExpectedSample(sums, 0, ScaledCase::kFillSeed, 2).CompareWith(store).max_error_over_bound,
      1.5, 0.02);
}

// Same as ScaledCase, with a given sample.
class PickedCase : public ScaledCase {
 public:
  PickedCase(int64_t rows, TensorMap map) : ScaledCase(rows), map_(std::move(map)) {}
  SampledCase Sample(uint64_t seed) const override {
    SampledCase sampled = ScaledCase::Sample(seed);
    sampled.maps = {map_, map_};
    return sampled;
  }

 private:
  TensorMap map_;
};

// Returns where the sample finds an error in this element of the whole output, or "".
std::string WhereFound(const PickedCase& picked, int64_t row, int64_t col) {
  TensorStore store(picked.tensors(), 1, MakeHostMemory());
  store.FillRandom(ScaledCase::kFillSeed);
  picked.RunReference(store.Set(0));
  const ExpectedSample expected(picked, 0, ScaledCase::kFillSeed, 2);
  EXPECT_THAT(expected.CompareWith(store).first_failure, IsEmpty());
  uint16_t& element = store.Set(0).At<uint16_t>(1)[row * ScaledCase::kCols + col];
  element = static_cast<uint16_t>(element + 3);
  return expected.CompareWith(store).first_failure;
}

TEST(PickedCaseTest, ColumnsAreThoseOfTheWholeProblem) {
  // Picks each column but the first twice, so that the sampled problem is as wide as the whole.
  std::vector<int64_t> cols{1};
  for (int64_t col = 1; col <= ScaledCase::kCols / 2; ++col) cols.insert(cols.end(), 2, 2 * col);
  const PickedCase picked(4, {.cols = cols});
  EXPECT_THAT(WhereFound(picked, 0, 4), HasSubstr("sampled row 0, column 3"));
  EXPECT_THAT(WhereFound(picked, 0, 3), IsEmpty());
}

TEST(PickedCaseTest, RowsMayStandInAnyOrderCloseAndFarApart) {
  const PickedCase picked(200, {.rows = {150, 3, 5, 199}});
  EXPECT_THAT(WhereFound(picked, 150, 0), HasSubstr("sampled row 0, column 0"));
  EXPECT_THAT(WhereFound(picked, 3, 1), HasSubstr("sampled row 1, column 1"));
  EXPECT_THAT(WhereFound(picked, 5, 2), HasSubstr("sampled row 2, column 2"));
  EXPECT_THAT(WhereFound(picked, 199, 32), HasSubstr("sampled row 3, column 32"));
  EXPECT_THAT(WhereFound(picked, 4, 0), IsEmpty());
}

// Reads but writes nothing.
class NoOutputCase : public BenchCase {
 public:
  NoOutputCase() { tensors_.Random(DType::kF32, 1, 8); }
  Cost GetCost() const override { return {}; }
  void RunReference(const TensorSet&) const override {}
  void LaunchCuda(const TensorSet&, const LaunchOptions&) const override {}
  SampledCase Sample(uint64_t) const override {
    return SampledCase(std::make_unique<NoOutputCase>());
  }
};

TEST(ExpectedSampleTest, ASampleWithoutOutputsProvesNothing) {
  const NoOutputCase nothing;
  TensorStore store(nothing.tensors(), 1, MakeHostMemory());
  store.FillRandom(1);
  const Comparison comparison = ExpectedSample(nothing, 0, 1, 2).CompareWith(store);
  EXPECT_THAT(comparison.first_failure, HasSubstr("the sample has no outputs"));
  EXPECT_EQ(comparison.max_error_over_bound, kWrong);
}

TEST_F(VerifyTest, ExactOutputsMustBeEqualBitByBit) {
  const ScaledCase exact(20, kExact);
  TensorStore store(exact.tensors(), 1, MakeHostMemory());
  store.FillRandom(ScaledCase::kFillSeed);
  exact.RunReference(store.Set(0));
  EXPECT_THAT(ExpectedSample(exact, 0, ScaledCase::kFillSeed, 2).CompareWith(store).first_failure,
              IsEmpty());
  ++store.Set(0).At<uint16_t>(1)[0];
  EXPECT_EQ(
      ExpectedSample(exact, 0, ScaledCase::kFillSeed, 2).CompareWith(store).max_error_over_bound,
      kWrong);
}

TEST(PickIndicesTest, HasTheEndsAndTheCountAskedFor) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int64_t> picked = PickIndices(100, 5, seed);
    ASSERT_EQ(picked.size(), 5u);
    EXPECT_EQ(picked.front(), 0);
    EXPECT_EQ(picked.back(), 99);
    EXPECT_TRUE(std::is_sorted(picked.begin(), picked.end()));
  }
  EXPECT_THAT(PickIndices(3, 8, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(PickIndices(0, 8, 1), IsEmpty());
  EXPECT_THAT(PickIndices(100, 1, 1), ElementsAre(99));
}

TEST(PlaceInL2Test, ColdMeansMoreThanFiveTimesTheL2) {
  constexpr int64_t kL2 = 60 << 20;
  const Placement placement = PlaceInL2(8 << 20, 8 << 20, kL2, int64_t{1} << 40);
  EXPECT_EQ(placement.cache, "cold");
  EXPECT_GT(placement.buffer_sets * int64_t{8 << 20}, 5 * kL2);
  EXPECT_EQ(PlaceInL2(1e9, 1 << 30, kL2, int64_t{1} << 40).buffer_sets, 2);
}

TEST(PlaceInL2Test, TheLabelIsRefusedWhereMemoryOrTouchedBytesDoNotAllowIt) {
  constexpr int64_t kL2 = 60 << 20;
  const Placement no_room = PlaceInL2(8 << 20, 8 << 20, kL2, 100 << 20);
  EXPECT_EQ(no_room.cache, "warm");
}

TEST(PlaceInL2Test, WarmRowsRotateOverSetsThatStayInHalfTheL2) {
  constexpr int64_t kL2 = 60 << 20;
  const auto warm_sets = [](double touched_bytes, int64_t room_bytes) {
    const Placement placement = PlaceInL2(touched_bytes, 8 << 20, kL2, room_bytes);
    EXPECT_EQ(placement.cache, "warm");
    return placement.buffer_sets;
  };
  EXPECT_EQ(warm_sets(8192, int64_t{1} << 40), kMaxWarmSets);
  EXPECT_EQ(warm_sets(8 << 20, 100 << 20), 3);  // 24 of 30 MiB
  EXPECT_EQ(warm_sets(8192, 20 << 20), 2);      // more do not fit
  EXPECT_EQ(warm_sets(40 << 20, 56 << 20), 1);  // even two do not fit
}

TEST(PlaceInL2Test, ALargePoolOfWhichALaunchTouchesLittleIsWarm) {
  constexpr int64_t kL2 = 60 << 20;
  // A launch that touches little of a large pool leaves it in the cache.
  EXPECT_EQ(PlaceInL2(8192, 1 << 20, kL2, int64_t{1} << 40).cache, "warm");
}

class PagedSampleOrderTest : public ::testing::TestWithParam<KvOrder> {};
INSTANTIATE_TEST_SUITE_P(Orders, PagedSampleOrderTest,
                         ::testing::Values(KvOrder::kHnd, KvOrder::kNhd),
                         [](const auto& suite) { return std::string(Name(suite.param)); });

TEST_P(PagedSampleOrderTest, PoolRowsAreThoseOfTheSampledPagesAndHeads) {
  const PagedBatch whole =
      ShuffledBatch({.num_kv_heads = 3, .page_size = 16, .head_dim = 64, .order = GetParam()},
                    std::vector<int64_t>{40, 16, 5});
  const PagedSample sample = SamplePrefixes(whole, {{0, 20}, {2, 5}}, {0, 2});
  ASSERT_EQ(sample.batch.NumSeqs(), 2);
  EXPECT_EQ(sample.batch.SequenceLength(0), 20);
  EXPECT_EQ(sample.batch.layout.num_pages, 3);
  ASSERT_EQ(static_cast<int64_t>(sample.pool_rows.size()), sample.batch.PoolRows());
  const PagedKvLayout& small = sample.batch.layout;
  const auto expect_same_row = [&](int64_t page, int64_t small_page, int32_t row) {
    const auto at = static_cast<size_t>(small.ValueOffset(small_page, 1, row) / small.head_dim);
    EXPECT_EQ(sample.pool_rows[at], whole.layout.ValueOffset(page, 2, row) / 64);
  };
  expect_same_row(whole.chunk_pages[0][1], sample.batch.chunk_pages[0][1], 3);
  expect_same_row(whole.chunk_pages[2][0], sample.batch.chunk_pages[1][0], 4);
  EXPECT_NO_THROW(Validate(sample.batch.Table().View(), small));
}

TEST(PagedSampleTest, PrefixesThatSharePagesShareThemInTheSample) {
  const PagedBatch whole = ShuffledBatch({.num_kv_heads = 1, .page_size = 16, .head_dim = 64},
                                         {32, 16, 16}, {{0, 1}, {0, 2}});
  const PagedSample sample = SamplePrefixes(whole, {{0, 48}, {1, 48}}, {0});
  EXPECT_EQ(sample.batch.layout.num_pages, 4);
  EXPECT_EQ(sample.batch.SequenceLength(1), 48);
}

TEST(PickSequencesTest, HasTheEndsOfThoseWithTokensAndEveryOtherInTurn) {
  EXPECT_THAT(PickSequences(std::vector<int64_t>{0, 5, 0, 7, 9, 0}, 3, 1), ElementsAre(1, 3, 4));
  EXPECT_THAT(PickSequences(std::vector<int64_t>{0, 5, 0}, 3, 1), ElementsAre(1));
  const std::vector<int64_t> lengths(32, 10);
  std::set<int64_t> seen;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::vector<int64_t> picked = PickSequences(lengths, 3, seed);
    seen.insert(picked.begin(), picked.end());
  }
  EXPECT_EQ(seen.size(), lengths.size());
}

TEST(AppendSampleTest, HasTheFirstAndTheLastToken) {
  const PagedKvLayout layout{.num_kv_heads = 2, .page_size = 16, .head_dim = 64};
  for (const AppendBatch& whole : {OneSequence(layout, 1000), ManySequences(layout, 100)}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const AppendSample sample = SamplePages(whole, {1}, seed);
      EXPECT_EQ(sample.tokens.front(), 0);
      EXPECT_EQ(sample.tokens.back(), whole.NumTokens() - 1);
    }
  }
}

TEST(AppendBatchTest, EveryTokenHasASlotAndARowOfAnglesToItself) {
  const PagedKvLayout layout{.num_kv_heads = 2, .page_size = 16, .head_dim = 64};
  for (const AppendBatch& batch : {OneSequence(layout, 100), ManySequences(layout, 100)}) {
    EXPECT_EQ(std::set<int64_t>(batch.slots.begin(), batch.slots.end()).size(), 100u);
    EXPECT_EQ(std::set<int32_t>(batch.positions.begin(), batch.positions.end()).size(), 100u);
    for (size_t i = 0; i < batch.slots.size(); ++i) {
      EXPECT_EQ(batch.slots[i] % 16, batch.positions[i] % 16) << "token " << i;
    }
  }
}

TEST(DistinctIdsTest, RepeatOnlyWhereThereAreFewer) {
  for (const int64_t count : {1, 40, 64}) {
    const std::vector<int32_t> ids = DistinctIds(count, 64);
    EXPECT_EQ(std::ssize(ids), count);
    EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), static_cast<size_t>(count));
  }
  std::map<int32_t, int> times;
  for (const int32_t id : DistinctIds(7, 3)) ++times[id];
  EXPECT_EQ(times.size(), 3u);
  for (const auto& [id, count] : times) EXPECT_GE(count, 2) << id;
}

TEST(AppendSampleTest, HasEveryTokenOfItsPages) {
  const PagedKvLayout layout{.num_kv_heads = 2, .page_size = 16, .head_dim = 64};
  const AppendBatch whole = OneSequence(layout, 100);
  const AppendSample sample = SamplePages(whole, {1}, 1);
  EXPECT_GE(sample.batch.layout.num_pages, 4);
  ASSERT_EQ(sample.tokens.size(), sample.batch.slots.size());
  EXPECT_GE(sample.tokens.size(), 52u);  // three full pages and one with four tokens
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    const int64_t slot = whole.slots[static_cast<size_t>(sample.tokens[i])];
    const int64_t small_slot = sample.batch.slots[i];
    const auto row = static_cast<size_t>(
        sample.batch.layout.KeyOffset(small_slot / 16, 0, static_cast<int32_t>(small_slot % 16)) /
        64);
    EXPECT_EQ(sample.pool_rows[row],
              whole.layout.KeyOffset(slot / 16, 1, static_cast<int32_t>(slot % 16)) / 64);
  }
}

}  // namespace
}  // namespace tokline::bench
