#include "harness/engine/rope_table.h"

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

// Compares the frequencies with a transcription of transformers' llama3 scaling.
TEST(RopeTableTest, Llama3ScalingKeepsShortWavesStretchesLongOnesAndMixesBetween) {
  constexpr int32_t kHeadDim = 64;
  constexpr double kTheta = 5e5, kPi = 3.14159265358979323846;
  const Llama3Scaling scaling{
      .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_positions = 8192};
  const std::vector<float> plain = MakeRopeTable(2, kHeadDim, kTheta);
  const std::vector<float> scaled = MakeRopeTable(2, kHeadDim, kTheta, scaling);
  int kept = 0, mixed = 0, stretched = 0;
  for (int32_t i = 0; i < kHeadDim / 2; ++i) {
    const double frequency = std::pow(kTheta, -2.0 * i / kHeadDim);
    const double wavelength = 2 * kPi / frequency;
    double expected = frequency;
    if (wavelength > 8192.0 / 1) {
      expected = frequency / 32;
      ++stretched;
    } else if (wavelength < 8192.0 / 4) {
      ++kept;
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * frequency / 32 + smooth * frequency;
      ++mixed;
    }
    const auto at = static_cast<size_t>(kHeadDim + 2 * i);  // at position 1, angle = frequency
    EXPECT_NEAR(scaled[at + 1], std::sin(expected), 1e-7 * expected) << "pair " << i;
    EXPECT_NEAR(plain[at + 1], std::sin(frequency), 1e-7 * frequency) << "pair " << i;
  }
  EXPECT_GT(kept, 5);
  EXPECT_GE(mixed, 3);
  EXPECT_GT(stretched, 5);
}

}  // namespace
}  // namespace tokline
