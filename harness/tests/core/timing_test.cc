#include "harness/core/timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

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

TEST(TimeOnHostTest, SamplesAreOfOneCall) {
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  const TimedSamples timed = TimeOnHost(nap, 5);
  ASSERT_EQ(timed.us.size(), 5u);
  EXPECT_EQ(timed.launches_per_sample, 1);
  for (const double us : timed.us) EXPECT_GE(us, 2000);
}

TEST(TimeOnHostTest, ShortCallsAreRepeatedUntilTheClockResolvesThem) {
  int calls = 0;
  const TimedSamples timed = TimeOnHost([&] { ++calls; }, 3);
  EXPECT_GT(timed.launches_per_sample, 1);
  EXPECT_GE(calls, 3 * timed.launches_per_sample);
  for (const double us : timed.us) EXPECT_GT(us, 0);
}

}  // namespace
}  // namespace tokline
