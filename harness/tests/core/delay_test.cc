#include "harness/core/delay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "kernels/common/error.h"

namespace tokline {
namespace {

TEST(DelayTest, HostIsBusyForAtLeastTheStatedTime) {
  for (const double us : {0.0, 50.0, 2000.0}) {
    const auto begin = std::chrono::steady_clock::now();
    DelayHost({.us = us});
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took.count(), us);
  }
}

TEST(DelayTest, NegativeEndlessAndUnknownDelaysAreRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double us : {-1.0, 2.0 * kMaxDelayUs, kNan}) {
    EXPECT_THROW(Validate(DelayParams{.us = us}), InvalidArgument) << us;
  }
}

}  // namespace
}  // namespace tokline
