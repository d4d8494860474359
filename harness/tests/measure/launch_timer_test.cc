// Times of calls on the host: how many are a sample or a rotation, and slowdowns of a known size.
#include "harness/measure/launch_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::SizeIs;

void Nap(int) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

TEST(MoreLaunchesTest, AreAsManyAsTheSlowdownOrNoneWhereThatIsInexact) {
  EXPECT_EQ(MoreLaunches(1000, 3), 30);
  EXPECT_EQ(MoreLaunches(33, 3), 1);
  EXPECT_EQ(MoreLaunches(36, 3), 0);
  EXPECT_EQ(MoreLaunches(8, 12.5), 1);
  EXPECT_EQ(MoreLaunches(1, 10), 0);
  for (int launches = 1; launches < 1000; ++launches) {
    const int more = MoreLaunches(launches, 3);
    if (more > 0) {
      EXPECT_NEAR(100.0 * more / launches, 3, 0.16) << launches;
    }
  }
}

TEST(RotationsOfTest, TakeTheLeastTimeUnlessThatIsTooMany) {
  EXPECT_EQ(RotationsOf(1000, 10, 4096), 100);
  EXPECT_EQ(RotationsOf(1000, 999, 4096), 2);
  EXPECT_EQ(RotationsOf(1000, 5000, 4096), 1);
  EXPECT_EQ(RotationsOf(1000, 0.2, 4096), 4096);
  EXPECT_EQ(RotationsOf(1000, 0, 4096), 4096);
  EXPECT_EQ(RotationsOf(1000, 10, 0), 1);  // a rotation has more launches than a graph should
}

TEST(HostTimerTest, SamplesAreOfOneCall) {
  const auto timer = MakeHostTimer(Nap, {});
  EXPECT_EQ(timer->launches_per_sample(), 1);
  EXPECT_THAT(timer->Sample(5, {}), AllOf(SizeIs(5), Each(Ge(2000))));
}

TEST(HostTimerTest, ShortCallsAreRepeatedUntilTheClockResolvesThem) {
  int calls = 0;
  const auto timer = MakeHostTimer([&](int) { ++calls; }, {});
  EXPECT_GT(timer->launches_per_sample(), 1);
  calls = 0;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<double> samples = timer->Sample(3, {});
  const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
  EXPECT_THAT(samples, AllOf(SizeIs(3), Each(Gt(0))));
  EXPECT_EQ(calls, 3 * timer->launches_per_sample());
  EXPECT_LE((samples[0] + samples[1] + samples[2]) * timer->launches_per_sample(), passed.count())
      << "a sample is the time of one call";
}

TEST(HostTimerTest, ARotationCallsEachBufferSetOnceInOrder) {
  std::vector<int> sets;
  const auto timer = MakeHostTimer([&](int set) { sets.push_back(set); }, {.buffer_sets = 3});
  EXPECT_EQ(timer->launches_per_sample() % 3, 0);
  sets.clear();
  EXPECT_GT(timer->RotateOnce().us, 0);
  EXPECT_THAT(sets, ElementsAre(0, 1, 2));
}

TEST(HostTimerTest, AnInjectedSlowdownIsInEverySample) {
  const auto timer = MakeHostTimer(Nap, {.slowdown_percent = 50});
  EXPECT_THAT(timer->Sample(3, {}), Each(Ge(3000)));
}

TEST(HostTimerTest, CallsBackOnceABlock) {
  int calls = 0;
  const auto timer = MakeHostTimer(Nap, {});
  timer->Sample(3, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(HostTimerTest, RefusesOptionsWithoutSense) {
  EXPECT_THROW(MakeHostTimer(Nap, {.buffer_sets = 0}), InvalidArgument);
  EXPECT_THROW(MakeHostTimer(Nap, {.slowdown_percent = -1}), InvalidArgument);
}

}  // namespace
}  // namespace tokline
