// Profiles of steps on the CPU: ops and gaps add up to the step, and a delay of a known size is
// found where it was put.
#include "harness/measure/step_profiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>

#include "harness/measure/op_delay.h"
#include "harness/tests/busy_machine.h"
#include "harness/tests/engine/golden.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class StepProfilerTest : public ::testing::Test {
 protected:
  StepProfilerTest() : model_(testing::LoadTinyModel()) {}

  std::optional<ProfiledSteps> Profile(std::optional<OpDelay> delay = {}) {
    Decoder decoder(model_.spec, model_.weights,
                    {.max_batch = 2, .max_context = 64, .delayed = DelayedBy(delay, Device::kCpu)});
    std::optional<ProfiledSteps> profiled = ProfileSteps(decoder, bench_, {});
    EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());
    EXPECT_FALSE(decoder.HasWork());
    return profiled;
  }
  static std::map<std::string, OpTime> ByName(const StepProfile& profile) {
    std::map<std::string, OpTime> times;
    for (const OpTime& time : profile.ops) times[time.op] = time;
    return times;
  }

  testing::LoadedModel model_;
  BenchOptions bench_{.batch = 2, .prompt_tokens = 8, .new_tokens = 12};
};

TEST_F(StepProfilerTest, OpsAndGapsAddUpToTheStep) {
  std::optional<ProfiledSteps> profiled;
  EXPECT_TRUE(testing::InOneOfTenRuns([&] {
    profiled = Profile();
    const StepProfile& profile = profiled.value().profile;
    return std::abs(profile.unexplained_us) < 0.02 * profile.step_us;
  })) << "of "
      << profiled->profile.step_us << " us, " << profiled->profile.unexplained_us
      << " us are unexplained";
  const StepProfile& profile = profiled->profile;
  EXPECT_EQ(profiled->note, "");
  EXPECT_EQ(profile.method, "clock");
  EXPECT_EQ(profile.steps, 11);
  double sum = profile.host_gap_us + profile.unexplained_us;
  for (const OpTime& time : profile.ops) {
    EXPECT_GT(time.us, 0) << time.op;
    sum += time.us;
  }
  EXPECT_NEAR(sum, profile.step_us, 1e-9 * profile.step_us);
  EXPECT_GT(profile.host_gap_us, 0);
  EXPECT_EQ(profile.device_gap_us, 0);
  const auto ops = ByName(profile);
  EXPECT_EQ(ops.size(), 8u);
  EXPECT_EQ(ops.at("down").launches, model_.spec.num_layers);
  EXPECT_EQ(ops.at("down").kernel, "linear");
  EXPECT_EQ(ops.at("qkv").kernel, "rmsnorm_qkv");
  EXPECT_EQ(ops.at("lm_head").launches, 1);
}

TEST_F(StepProfilerTest, DelayOfAnOpIsFoundInThatOp) {
  const double added = 2000.0 * static_cast<double>(model_.spec.num_layers);
  EXPECT_TRUE(testing::InOneOfTenRuns([&] {
    const auto profiled = Profile(OpDelay{.op = StepOp::kDown, .us = 2000});
    double longest_other = profiled.value().profile.host_gap_us;
    for (const auto& [op, time] : ByName(profiled->profile)) {
      if (op == "down") {
        EXPECT_GE(time.us, added);
        EXPECT_EQ(time.launches, model_.spec.num_layers);
      } else {
        longest_other = std::max(longest_other, time.us);
      }
    }
    return longest_other < added / 2;
  })) << "the delay is found elsewhere too";
}

TEST_F(StepProfilerTest, DelayOfTheHostIsFoundInTheHostGap) {
  bench_.host_delay_us = 10000;
  EXPECT_TRUE(testing::InOneOfTenRuns([&] {
    const StepProfile profile = Profile().value().profile;
    EXPECT_GE(profile.host_gap_us, 10000);
    return std::ranges::all_of(profile.ops, [](const OpTime& time) { return time.us < 5000; });
  })) << "the delay is found in an op too";
}

TEST_F(StepProfilerTest, LongRunsAreProfiledInTheMiddle) {
  model_.spec.num_layers = 1;
  model_.weights.layers.resize(1);
  bench_ = {.batch = 1, .prompt_tokens = 2, .new_tokens = 140};
  Decoder decoder(model_.spec, model_.weights, {.max_batch = 1, .max_context = 160});
  const auto profiled = ProfileSteps(decoder, bench_, {});
  ASSERT_TRUE(profiled);
  EXPECT_EQ(profiled->profile.steps, 128);
  EXPECT_EQ(ByName(profiled->profile).at("sampling").launches, 1);
}

TEST_F(StepProfilerTest, InterruptionGivesNoProfile) {
  std::atomic<bool> interrupted = true;
  bench_.interrupted = &interrupted;
  EXPECT_FALSE(Profile());
}

TEST_F(StepProfilerTest, TooSmallADecoderIsRefused) {
  bench_.batch = 3;
  EXPECT_THROW(Profile(), InvalidArgument);
}

}  // namespace
}  // namespace tokline
