#include "harness/measure/timing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/common/error.h"

namespace tokline {
namespace {

TEST(SummarizeTest, OddCountTakesTheMiddleSample) {
  const SampleStats stats = Summarize(std::vector<double>{9, 1, 5});
  EXPECT_EQ(stats.median, 5);
  EXPECT_EQ(stats.mad, 4);
}

TEST(SummarizeTest, EvenCountTakesTheMeanOfTheMiddleTwo) {
  const SampleStats stats = Summarize(std::vector<double>{4, 1, 2, 10});
  EXPECT_EQ(stats.median, 3);
  EXPECT_EQ(stats.mad, 1.5);  // deviations 1, 1, 2, 7
}

TEST(SummarizeTest, OneOutlierMovesNeitherFigure) {
  std::vector<double> samples(15, 10);
  samples[7] = 1e6;
  const SampleStats stats = Summarize(samples);
  EXPECT_EQ(stats.median, 10);
  EXPECT_EQ(stats.mad, 0);
}

TEST(SummarizeTest, RefusesWhatIsNoTime) {
  EXPECT_THROW(Summarize({}), InvalidArgument);
  EXPECT_THROW(Summarize(std::vector<double>{1, 0}), InvalidArgument);
  EXPECT_THROW(Summarize(std::vector<double>{-1}), InvalidArgument);
  EXPECT_THROW(Summarize(std::vector<double>{std::nan("")}), InvalidArgument);
  EXPECT_THROW(Summarize(std::vector<double>{std::numeric_limits<double>::infinity()}),
               InvalidArgument);
}

std::vector<double> CountingDown(int from) {
  std::vector<double> values;
  for (int i = from; i >= 1; --i) values.push_back(i);
  return values;
}

// Ranks as in published tables of the sign test at 2.5 % a side.
TEST(MedianIntervalTest, LiesBetweenTheRanksOfTheSignTest) {
  const auto expect_ranks = [](int count, int low, int high) {
    const Interval interval = MedianInterval(CountingDown(count));
    EXPECT_EQ(interval.low, low) << count;
    EXPECT_EQ(interval.high, high) << count;
  };
  expect_ranks(6, 1, 6);
  expect_ranks(8, 1, 8);
  expect_ranks(9, 2, 8);
  expect_ranks(15, 4, 12);
  expect_ranks(20, 6, 15);
  expect_ranks(50, 18, 33);
  expect_ranks(100, 40, 61);
}

TEST(MedianIntervalTest, OfFewSamplesIsTheirRange) {
  for (const int count : {1, 2, 5}) {
    EXPECT_EQ(MedianInterval(CountingDown(count)).low, 1);
    EXPECT_EQ(MedianInterval(CountingDown(count)).high, count);
  }
  EXPECT_THROW(MedianInterval({}), InvalidArgument);
}

TEST(MedianIntervalTest, ThousandsOfSamplesGiveANarrowOne) {
  const Interval interval = MedianInterval(CountingDown(10001));
  EXPECT_EQ(interval.low + interval.high, 10002);
  EXPECT_NEAR(interval.high - interval.low, 2 * 1.96 * 50, 2);  // 2 z sqrt(n) / 2
}

}  // namespace
}  // namespace tokline
