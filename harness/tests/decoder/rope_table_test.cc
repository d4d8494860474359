#include "harness/decoder/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tokline {
namespace {

TEST(RopeTableTest, RowsArePairsOfCosineAndSineOfPositionTimesFrequency) {
  constexpr int32_t kHeadDim = 128;
  constexpr double kTheta = 1e6;
  constexpr int64_t kPositions = 2000;
  const std::vector<float> table = MakeRopeTable(kPositions, kHeadDim, kTheta);
  ASSERT_EQ(table.size(), static_cast<size_t>(kPositions * kHeadDim));
  for (const int64_t position : {0, 1, 17, 1999}) {
    for (const int32_t pair : {0, 1, 31, 63}) {
      const double angle =
          static_cast<double>(position) * std::exp(-2.0 * pair / kHeadDim * std::log(kTheta));
      const size_t at = static_cast<size_t>(position * kHeadDim + 2 * pair);
      EXPECT_NEAR(table[at], std::cos(angle), 1e-7) << position << ", " << pair;
      EXPECT_NEAR(table[at + 1], std::sin(angle), 1e-7) << position << ", " << pair;
    }
  }
}

}  // namespace
}  // namespace tokline
