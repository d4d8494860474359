#include "reference/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace tokline {
namespace {

constexpr double kLittle = 1, kMuch = 1e12;  // products

TEST(ParallelForTest, CallsEachItemOnceHoweverMuchWorkItIs) {
  for (const double products : {kLittle, kMuch}) {
    for (const int64_t count : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count) + 1);
      ParallelFor(count, products, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (int64_t i = 0; i <= count; ++i) {
        EXPECT_EQ(calls[static_cast<size_t>(i)], i < count ? 1 : 0) << i << " of " << count;
      }
    }
  }
}

// Each of two items waits for the other to begin.
TEST(ParallelForTest, MuchWorkRunsAtTheSameTime) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "this machine has one core";
  std::atomic<int> begun = 0, together = 0;
  ParallelFor(2, kMuch, [&](int64_t) {
    ++begun;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begun < 2 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    if (begun == 2) ++together;
  });
  EXPECT_EQ(together, 2);
}

TEST(ParallelForTest, ALittleWorkStaysOnThisThread) {
  const std::thread::id here = std::this_thread::get_id();
  ParallelFor(100, kLittle, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), here); });
}

}  // namespace
}  // namespace tokline
