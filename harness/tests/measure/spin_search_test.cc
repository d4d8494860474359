#include "harness/measure/spin_search.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tokline {
namespace {

TEST(FindSpinUsTest, ASpinThatShowsInFullIsAsLongAsWanted) {
  int measured = 0;
  const auto added = [&](double spin_us) { return ++measured, spin_us; };
  EXPECT_DOUBLE_EQ(FindSpinUs(30, added), 30);
  EXPECT_EQ(measured, 1);
}

TEST(FindSpinUsTest, WhatTheSampleHidesIsMadeUpFor) {
  const auto added = [](double spin_us) { return std::max(0.0, spin_us - 12); };
  EXPECT_NEAR(FindSpinUs(30, added), 42, 0.03 * 30);
  EXPECT_NEAR(FindSpinUs(5, added), 17, 0.03 * 5) << "also where a spin as wanted hides wholly";
}

TEST(FindSpinUsTest, WhatTheSpinItselfCostsIsTakenOff) {
  const auto added = [](double spin_us) { return spin_us + 4; };
  EXPECT_NEAR(FindSpinUs(30, added), 26, 0.03 * 30);
  EXPECT_EQ(FindSpinUs(3, added), 0) << "a spin cannot be shorter";
}

TEST(FindSpinUsTest, OfNoisyTriesTheNearestIsTaken) {
  int tried = 0;
  const double noise[] = {-9, -8, 7, -8};
  const auto added = [&](double spin_us) { return spin_us + noise[tried++]; };
  EXPECT_DOUBLE_EQ(FindSpinUs(30, added), 39);
  EXPECT_EQ(tried, 4);
}

}  // namespace
}  // namespace tokline
