// Shares of the phases of decode_step, from stamps whose differences are known.
#include "harness/measure/step_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/measure/profile_table.h"
#include "kernels/common/error.h"
#include "kernels/decode_step/decode_step.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kLayers = 2;
// Of the blocks' phases in each layer, and of the LM head.
constexpr int64_t kCycles[2][kDecodeStepPhases] = {{30, 5, 20, 60, 40}, {10, 45, 24, 70, 6}};
constexpr int64_t kHeadCycles[2] = {90, 110};  // a block takes 400 cycles in all, or 420

// A block's clock is its own.
std::vector<int64_t> Stamps() {
  std::vector<int64_t> stamps;
  for (int block = 0; block < 2; ++block) {
    stamps.push_back(block == 0 ? 1'000'000 : 7);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const int64_t cycles : kCycles[block]) stamps.push_back(stamps.back() + cycles);
    }
    stamps.push_back(stamps.back() + kHeadCycles[block]);
  }
  return stamps;
}

TEST(StepPhasesTest, AShareIsThatOfTheMeanOverBlocksInAllLayers) {
  const PhaseShares shares = SharesOfPhases(Stamps(), kLayers);
  ASSERT_EQ(shares.size(), 6u);
  constexpr double kAll = 2 * 155 + 90 + 2 * 155 + 110;
  EXPECT_DOUBLE_EQ(shares.at(StepOp::kQkv), 2 * 40 / kAll);
  EXPECT_DOUBLE_EQ(shares.at(StepOp::kChunkDecode), 2 * 50 / kAll);
  EXPECT_DOUBLE_EQ(shares.at(StepOp::kAttentionOutput), 2 * 44 / kAll);
  EXPECT_DOUBLE_EQ(shares.at(StepOp::kGateUp), 2 * 130 / kAll);
  EXPECT_DOUBLE_EQ(shares.at(StepOp::kDown), 2 * 46 / kAll);
  EXPECT_DOUBLE_EQ(shares.at(StepOp::kLmHead), 200 / kAll);
}

TEST(StepPhasesTest, StampsThatAreMissingAreRefused) {
  std::vector<int64_t> stamps = Stamps();
  stamps[12 + 4] = 0;
  EXPECT_THAT([&] { SharesOfPhases(stamps, kLayers); },
              ThrowsMessage<RuntimeFailure>("block 1 has not written stamp 4 of 12"));
  EXPECT_THAT([&] { SharesOfPhases(std::vector<int64_t>(24, 0), kLayers); },
              ThrowsMessage<RuntimeFailure>("block 0 has not written stamp 0 of 12"));
}

TEST(StepPhasesTest, StampsThatDoNotAscendAreRefused) {
  std::vector<int64_t> stamps = Stamps();
  stamps[12 + 2] = stamps[12 + 1];
  EXPECT_THAT([&] { SharesOfPhases(stamps, kLayers); },
              ThrowsMessage<RuntimeFailure>(
                  "stamp 2 of block 1 is 17, that before it 17; they must ascend"));
}

TEST(StepPhasesTest, AnotherNumberOfStampsIsRefused) {
  std::vector<int64_t> stamps = Stamps();
  stamps.pop_back();
  EXPECT_THAT([&] { SharesOfPhases(stamps, kLayers); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("there are 23 stamps; each block writes 12 in 2 layers")));
  EXPECT_THAT([&] { SharesOfPhases({}, kLayers); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there are 0 stamps")));
  EXPECT_THAT([&] { SharesOfPhases(Stamps(), 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("num_layers is 0")));
}

TEST(StepPhasesTest, TheProfileShowsThemBelowTheirOp) {
  const StepProfile profile{
      .method = "cupti",
      .steps = 1,
      .step_us = 100,
      .ops = {{.op = "sampling", .kernel = "sampling", .launches = 1, .us = 8},
              {.op = "decode_step",
               .kernel = "decode_step",
               .launches = 1,
               .us = 90,
               .phases = {{.phase = "attention_output", .us = 60},
                          {.phase = "lm_head", .us = 30}}}},
      .host_gap_us = 2};
  const std::string table = ProfileTable({}, {.profile = profile}, 0.1);
  EXPECT_THAT(table, HasSubstr("\n  decode_step           1 x decode_step         90.0 us  90.0%"
                               "\n    attention_output                            60.0 us  60.0%"
                               "\n    lm_head                                     30.0 us  30.0%"
                               "\n  sampling              1 x sampling             8.0 us   8.0%"));
}

}  // namespace
}  // namespace tokline
