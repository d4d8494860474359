// Speed-ups of made-up rounds, and the verdicts on ablations: what drift, noise, few rounds and the
// difference of equal decoders may not decide.
#include "harness/measure/speed_up.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using Samples = std::vector<double>;

// Rounds in which the time without is `ratio` times that with it, while the clocks drift.
SpeedUp Drifting(double ratio) {
  Samples with, without;
  for (int round = 0; round < 15; ++round) {
    with.push_back(10.0 + round);
    without.push_back(ratio * with.back() * (round % 2 == 0 ? 1.001 : 0.999));
  }
  return {with, without};
}

// As many rounds for as against.
SpeedUp Undecided() {
  Samples with(15, 10.0), without;
  for (int round = 0; round < 15; ++round) without.push_back(round < 8 ? 11 : 9);
  return {with, without};
}

TEST(SpeedUpTest, IsTheMedianOfTheRoundsRatiosWhateverDrifts) {
  EXPECT_NEAR(Drifting(1.25).ratio, 1.25, 0.002);
  EXPECT_EQ(Drifting(1.25).Direction(), 1);
  EXPECT_EQ(Drifting(0.8).Direction(), -1);
  EXPECT_LE(Drifting(0.8).interval.low, Drifting(0.8).ratio);
}

TEST(SpeedUpTest, IsNothingWhereRoundsDisagreeOrTheEffectIsSmall) {
  EXPECT_NEAR(Undecided().ratio, 1.1, 1e-9);
  EXPECT_EQ(Undecided().Direction(), 0);
  EXPECT_EQ(Drifting(1.003).Direction(), 0);
  EXPECT_EQ(Drifting(0.997).Direction(), 0);
}

TEST(SpeedUpTest, IsNothingWhereEqualDecodersDifferByAsMuch) {
  EXPECT_EQ(Drifting(1.02).Direction(0.01), 1);
  EXPECT_EQ(Drifting(1.02).Direction(0.03), 0);
  EXPECT_EQ(Drifting(0.98).Direction(0.01), -1);
  EXPECT_EQ(Drifting(0.98).Direction(0.03), 0);
  EXPECT_FALSE(Drifting(0.98).Unsure(0.03));  // that is known
  EXPECT_TRUE(Undecided().Unsure(0.5));       // that is not, however much equal ones differ
  EXPECT_EQ(AblationVerdict(Drifting(1.5), Drifting(0.98), 0, 0.03),
            "WINS ALONE, BUT GAINS NOTHING in the decoder");
  EXPECT_EQ(AblationVerdict(Drifting(1.02), Drifting(1.1), 0, 0.03),
            "wins alone and in the decoder");
  EXPECT_EQ(AblationVerdict(Drifting(0.93), Drifting(1.1), 0.08, 0.03),
            "no faster alone, yet wins in the decoder");
}

TEST(SpeedUpTest, UnpairedOrMissingRoundsAreRefused) {
  EXPECT_THROW(SpeedUp(Samples{1, 2}, Samples{1}), InvalidArgument);
  EXPECT_THROW(SpeedUp(Samples{}, Samples{}), InvalidArgument);
}

TEST(SpeedUpTest, VerdictSaysWhereAKernelWinsAloneAndLosesInTheDecoder) {
  EXPECT_EQ(AblationVerdict(Drifting(2.64), Drifting(0.9), 0, 0),
            "WINS ALONE, BUT LOSES in the decoder");
  EXPECT_EQ(AblationVerdict(Drifting(2.64), Drifting(1), 0, 0),
            "WINS ALONE, BUT GAINS NOTHING in the decoder");
  EXPECT_EQ(AblationVerdict(Drifting(1.5), Drifting(1.1), 0, 0), "wins alone and in the decoder");
  EXPECT_EQ(AblationVerdict(Drifting(0.5), Drifting(1.1), 0, 0),
            "loses alone, yet wins in the decoder");
  EXPECT_EQ(AblationVerdict(std::nullopt, Drifting(1.1), 0, 0), "wins in the decoder");
  EXPECT_EQ(AblationVerdict(std::nullopt, Drifting(0.9), 0, 0), "LOSES in the decoder");
}

TEST(SpeedUpTest, FewerRoundsThanAnIntervalTakesGiveNoVerdict) {
  const auto rounds = [](size_t count) {
    return SpeedUp(Samples(count, 10.0), Samples(count, 20.0));
  };
  EXPECT_EQ(AblationVerdict(rounds(5), rounds(5), 0, 0), "too few rounds to say");
  EXPECT_EQ(AblationVerdict(std::nullopt, rounds(1), 0, 0), "too few rounds to say");
  EXPECT_FALSE(rounds(5).HasInterval());
  EXPECT_EQ(AblationVerdict(rounds(6), rounds(6), 0, 0), "wins alone and in the decoder");
}

TEST(SpeedUpTest, VerdictOfRoundsThatDisagreeIsNotThatNothingIsGained) {
  EXPECT_TRUE(Undecided().Unsure());
  EXPECT_FALSE(Drifting(1.003).Unsure());
  EXPECT_FALSE(Drifting(1.25).Unsure());
  EXPECT_EQ(AblationVerdict(Drifting(1.5), Undecided(), 0, 0),
            "too noisy to say in the decoder; wins alone");
  EXPECT_EQ(AblationVerdict(Undecided(), Drifting(1.5), 0, 0),
            "too noisy to say alone; wins in the decoder");
  EXPECT_EQ(AblationVerdict(Undecided(), Undecided(), 0, 0), "too noisy to say in the decoder");
  EXPECT_EQ(AblationVerdict(std::nullopt, Undecided(), 0, 0), "too noisy to say in the decoder");
}

}  // namespace
}  // namespace tokline
