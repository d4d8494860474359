// Sampling on a simulated clock: a source says what each launch took, and nobody waits for it.
#include "harness/measure/stopping_rule.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr int kLaunches = 100;  // a sample

// Gives samples with the relative noise, and counts what it is asked for.
class SimulatedSource {
 public:
  SimulatedSource(double us, double noise) : us_(us), noise_(noise) {}

  std::vector<double> operator()(int count) {
    ++blocks;
    last_block = count;
    std::vector<double> samples;
    for (int i = 0; i < count; ++i) {
      samples.push_back(us_ * (1 + noise_ * std::uniform_real_distribution<>(-1, 1)(rng_)));
    }
    seconds += 1e-6 * kLaunches * std::accumulate(samples.begin(), samples.end(), 0.0);
    return samples;
  }

  int blocks = 0;
  int last_block = 0;
  double seconds = 0;

 private:
  double us_;
  double noise_;
  std::mt19937 rng_{7};
};

TakenSamples Take(const StoppingRule& rule, SimulatedSource& source) {
  return TakeSamples(rule, kLaunches, [&](int count) { return source(count); });
}

TEST(RelativePrecisionTest, IsHalfTheWidthOfTheIntervalOverTheMedian) {
  std::vector<double> samples(15);
  std::iota(samples.begin(), samples.end(), 1);
  EXPECT_DOUBLE_EQ(RelativePrecision(samples), (12 - 4) / 2.0 / 8);
}

TEST(StoppingRuleTest, QuietSamplesEndAfterTheLeastNumber) {
  SimulatedSource source(10, 0.001);
  const TakenSamples taken = Take({}, source);
  EXPECT_EQ(taken.us.size(), static_cast<size_t>(kMinSamples));
  EXPECT_EQ(taken.stopped, "precise");
  EXPECT_EQ(source.blocks, 1);
  EXPECT_FALSE(taken.interrupted);
}

TEST(StoppingRuleTest, NoisySamplesContinueUntilTheMedianIsKnown) {
  SimulatedSource source(10, 0.05);
  const TakenSamples taken = Take({}, source);
  EXPECT_GT(taken.us.size(), static_cast<size_t>(kMinSamples));
  EXPECT_EQ(taken.stopped, "precise");
  EXPECT_LE(RelativePrecision(taken.us), 0.005);
  const std::vector<double> before_the_last_block(taken.us.begin(),
                                                  taken.us.end() - source.last_block);
  EXPECT_GT(RelativePrecision(before_the_last_block), 0.005) << "it ends as soon as it may";
}

TEST(StoppingRuleTest, SamplesThatStayNoisyEndWithTheirTime) {
  SimulatedSource source(10, 0.9);
  const TakenSamples taken = Take({}, source);
  EXPECT_EQ(taken.stopped, "time");
  EXPECT_GT(RelativePrecision(taken.us), 0.005);
  EXPECT_NEAR(source.seconds, 0.5, 0.02);
  EXPECT_LE(source.blocks, 20) << "of " << taken.us.size() << " samples: each block is longer";
}

TEST(StoppingRuleTest, LongLaunchesStillGetTheLeastNumber) {
  SimulatedSource source(1e6, 0.9);
  const TakenSamples taken = Take({}, source);
  EXPECT_EQ(taken.us.size(), static_cast<size_t>(kMinSamples));
  EXPECT_EQ(taken.stopped, "time");
}

TEST(StoppingRuleTest, AStatedNumberIsTakenInOneBlock) {
  SimulatedSource source(10, 0.9);
  const TakenSamples taken = Take({.samples = 40}, source);
  EXPECT_EQ(taken.us.size(), 40u);
  EXPECT_EQ(taken.stopped, "");
  EXPECT_EQ(source.blocks, 1);
}

TEST(StoppingRuleTest, AnInterruptedSourceEndsIt) {
  const TakenSamples taken = TakeSamples({}, kLaunches, [](int) {
    return std::vector<double>{1, 2, 3};
  });
  EXPECT_TRUE(taken.interrupted);
  EXPECT_EQ(taken.us.size(), 3u);
  EXPECT_EQ(taken.stopped, "");
}

TEST(StoppingRuleTest, TheIntervalOfAStoppedRowHoldsTheMedian) {
  int missed = 0;
  constexpr int kRows = 400;
  std::mt19937 rng(3);
  std::lognormal_distribution<> skewed(0, 0.03);  // median 1
  for (int row = 0; row < kRows; ++row) {
    const TakenSamples taken = TakeSamples({}, kLaunches, [&](int count) {
      std::vector<double> samples;
      for (int i = 0; i < count; ++i) samples.push_back(skewed(rng));
      return samples;
    });
    const Interval interval = MedianInterval(taken.us);
    if (interval.low > 1 || interval.high < 1) ++missed;
  }
  // Looking again and again costs some of the 95 %: an interval that is narrow by chance ends it.
  EXPECT_LE(missed, kRows / 8);
}

TEST(StoppingRuleTest, ASampleThatIsNoTimeIsRefused) {
  SimulatedSource source(0, 0);
  EXPECT_THROW(Take({}, source), InvalidArgument);
}

TEST(StoppingRuleTest, ARuleThatCannotEndIsRefused) {
  SimulatedSource source(10, 0);
  EXPECT_THROW(Take({.precision = 0}, source), InvalidArgument);
  EXPECT_THROW(Take({.seconds = -1}, source), InvalidArgument);
}

}  // namespace
}  // namespace tokline
