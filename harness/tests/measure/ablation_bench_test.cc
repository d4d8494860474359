// Rounds of two decoders side by side on the CPU: every round has a sample of both, and ops alone
// are timed without any others, as delays of a known size show.
#include "harness/measure/ablation_bench.h"

#include <gtest/gtest.h>

#include <atomic>

#include "harness/measure/op_delay.h"
#include "harness/measure/timing.h"
#include "harness/tests/busy_machine.h"
#include "harness/tests/engine/golden.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class AblationBenchTest : public ::testing::Test {
 protected:
  AblationBenchTest() : model_(testing::LoadTinyModel()) {}

  Decoder MakeDecoder(std::optional<OpDelay> delay = {}, int32_t max_batch = 2) {
    return Decoder(
        model_.spec, model_.weights,
        {.max_batch = max_batch, .max_context = 64, .delayed = DelayedBy(delay, Device::kCpu)});
  }

  testing::LoadedModel model_;
  BenchOptions bench_{.batch = 2, .prompt_tokens = 6, .new_tokens = 5, .repeats = 4};
};

TEST(MeanOfOrdersTest, WhatTheDecoderMadeFirstLosesCancelsOut) {
  const AblationRounds one{.with = {{2, 2}, {8, 8}, {}, {{}}},
                           .without = {{3.3, 3.3}, {9, 9}, {}, {{}}}};
  const AblationRounds other{.with = {{2.2, 2.2}, {8, 8}, {}, {{}}},
                             .without = {{3, 3}, {9, 9}, {}, {{}}}};
  const AblationRounds both = MeanOfOrders(one, other);
  EXPECT_EQ(both.with.texts.size(), 2u);
  EXPECT_TRUE(both.with.alone_us.empty());
  ASSERT_EQ(both.with.decode_ms.size(), 2u);
  EXPECT_NEAR(both.without.decode_ms[1] / both.with.decode_ms[1], 1.5, 1e-12);
  EXPECT_NEAR(both.with.prefill_ms[0], 8, 1e-12);
  AblationRounds shorter = other;
  shorter.with.decode_ms.pop_back();
  EXPECT_THROW(MeanOfOrders(one, shorter), InvalidArgument);
}

TEST_F(AblationBenchTest, EveryRoundGivesASampleOfBothSides) {
  Decoder with = MakeDecoder(), without = MakeDecoder();
  const AblationRounds rounds = RunAblation(with, without, {StepOp::kDown}, bench_);
  EXPECT_FALSE(rounds.interrupted);
  for (const AblationSide* side : {&rounds.with, &rounds.without}) {
    EXPECT_EQ(side->decode_ms.size(), 4u);
    EXPECT_EQ(side->prefill_ms.size(), 4u);
    EXPECT_EQ(side->alone_us.size(), 4u);
  }
  ASSERT_EQ(rounds.with.texts.size(), 2u);
  EXPECT_EQ(rounds.with.texts[1].prompt, rounds.without.texts[1].prompt);
  EXPECT_EQ(rounds.with.texts[1].tokens, rounds.without.texts[1].tokens);
  EXPECT_FALSE(with.HasWork());
  EXPECT_FALSE(without.HasWork());
}

TEST_F(AblationBenchTest, OpsAloneTakeTheirOwnTimeAndNoOthers) {
  const double delay_us = 2000, layers = static_cast<double>(model_.spec.num_layers);
  Decoder with = MakeDecoder(), without = MakeDecoder(OpDelay{.op = StepOp::kDown, .us = delay_us});
  EXPECT_TRUE(testing::InOneOfTenRuns([&] {
    const AblationRounds same = RunAblation(with, without, {StepOp::kGateUp, StepOp::kQkv}, bench_);
    EXPECT_GE(1e3 * Median(same.without.decode_ms), layers * delay_us);
    return Median(same.without.alone_us) < layers * delay_us / 2;
  })) << "the delay is found in other ops";
  EXPECT_TRUE(testing::InOneOfTenRuns([&] {
    const AblationRounds slow = RunAblation(with, without, {StepOp::kDown}, bench_);
    EXPECT_GE(Median(slow.without.alone_us), layers * delay_us);
    return Median(slow.with.alone_us) < layers * delay_us / 2;
  })) << "the delay is found on the other side";
}

TEST_F(AblationBenchTest, WithoutOpsNothingIsTimedAlone) {
  Decoder with = MakeDecoder(), without = MakeDecoder();
  const AblationRounds rounds = RunAblation(with, without, {}, bench_);
  EXPECT_EQ(rounds.with.decode_ms.size(), 4u);
  EXPECT_TRUE(rounds.with.alone_us.empty());
}

TEST_F(AblationBenchTest, InterruptionIsMarked) {
  Decoder with = MakeDecoder(), without = MakeDecoder();
  std::atomic<bool> interrupted = true;
  bench_.interrupted = &interrupted;
  EXPECT_TRUE(RunAblation(with, without, {StepOp::kDown}, bench_).interrupted);
}

TEST_F(AblationBenchTest, TooSmallADecoderIsRefused) {
  Decoder with = MakeDecoder(), without = MakeDecoder({}, 1);
  EXPECT_THROW(RunAblation(with, without, {}, bench_), InvalidArgument);
}

}  // namespace
}  // namespace tokline
