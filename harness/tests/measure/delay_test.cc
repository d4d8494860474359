#include "harness/measure/delay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "harness/measure/op_delay.h"
#include "harness/platform/clock.h"
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

TEST(DelayedByTest, CallsTheDelayOfTheOpAndRefusesWhatNoDelayMayBe) {
  EXPECT_FALSE(DelayedBy(std::nullopt, Device::kCpu).has_value());
  const auto delayed = DelayedBy(OpDelay{.op = StepOp::kDown, .us = 200}, Device::kCpu);
  ASSERT_TRUE(delayed.has_value());
  EXPECT_EQ(delayed->op, StepOp::kDown);
  const auto begin = Clock::now();
  delayed->delay({});
  EXPECT_GE(SecondsSince(begin), 200e-6);
  EXPECT_THROW(DelayedBy(OpDelay{.op = StepOp::kDown, .us = -1}, Device::kCpu), InvalidArgument);
}

}  // namespace
}  // namespace tokline
