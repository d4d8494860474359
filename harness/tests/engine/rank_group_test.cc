// The ranks of a process work at the same time, meet, and end together.
#include "harness/engine/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(RankGroupTest, ASingleRankWorksOnTheThreadOfItsCaller) {
  RankGroup group({.ranks = 1});
  std::thread::id thread;
  group.Run([&](int32_t rank) {
    EXPECT_EQ(rank, 0);
    thread = std::this_thread::get_id();
  });
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(RankGroupTest, RanksMeetAndSeeWhatEachHasBrought) {
  RankGroup group({.ranks = 5});
  constexpr size_t kMeetings = 2000;
  int values[5][kMeetings] = {};
  std::atomic<int> wrong = 0;
  for (int run = 0; run < 2; ++run) {
    group.Run([&](int32_t rank) {
      for (size_t i = 0; i < kMeetings; ++i) {
        const RankGroup::Brought all = group.Meet(rank, &values[rank][i]);
        for (size_t r = 0; r < 5; ++r) wrong += all[r] != &values[r][i];
      }
    });
  }
  EXPECT_EQ(wrong, 0);
}

TEST(RankGroupTest, AMistakeOfTheCallerIsPassedOnAsItIs) {
  RankGroup group({.ranks = 2});
  EXPECT_THAT([&] { group.Run([](int32_t) { throw InvalidArgument("3 is not 4"); }); },
              ThrowsMessage<InvalidArgument>("3 is not 4"));
}

TEST(RankGroupTest, OneThatLeavesBeforeTheMeetingIsMissing) {
  RankGroup group({.ranks = 3, .limit = milliseconds(50)});
  const auto two_meet = [&](int32_t rank) {
    if (rank != 2) group.Meet(rank, nullptr);
  };
  EXPECT_THAT([&] { group.Run(two_meet); },
              ThrowsMessage<RuntimeFailure>(HasSubstr("rank 2 of 3 hangs")));
}

// Its place at the meeting may be gone by the time that it comes.
TEST(RankGroupTest, OneThatComesTooLateMeetsNobody) {
  RankGroup group({.ranks = 2, .limit = milliseconds(50)});
  bool met = false;
  EXPECT_THROW(group.Run([&](int32_t rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(80));
    group.Meet(rank, nullptr);
    if (rank == 1) met = true;
  }),
               RuntimeFailure);
  EXPECT_FALSE(met);
}

TEST(RankGroupTest, SlowLoadingIsNoHang) {
  RankGroup group({.ranks = 2, .limit = milliseconds(1)});
  EXPECT_NO_THROW(group.RunApart([&](int32_t rank) {
    std::this_thread::sleep_for(milliseconds(50 * rank));
    group.Meet(rank, nullptr);
    std::this_thread::sleep_for(milliseconds(50 * rank));
  }));
}

TEST(RankGroupDeathTest, OneThatNeverComesBackIsLeftToTheHandler) {
  const auto hang = [] {
    RankGroup group({.ranks = 2, .limit = milliseconds(50), .on_hang = [](const std::string& line) {
                       std::fprintf(stderr, "%s", line.c_str());
                       std::_Exit(7);
                     }});
    group.Run([](int32_t rank) {
      while (rank == 1) std::this_thread::sleep_for(milliseconds(10));
    });
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(7),
              "rank 1 of 2 hangs: the others have waited for 0.05 s");
}

TEST(RankGroupTest, ItsSizeIsBounded) {
  EXPECT_THAT([] { RankGroup({.ranks = kMaxRanks + 1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("it must be 1 to 8")));
}

}  // namespace
}  // namespace tokline
