// Ops of chains timed in place on the CPU, beside delays of a known size, and in profiles.
#include "harness/measure/ops_in_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "harness/measure/op_delay.h"
#include "harness/measure/profile_table.h"
#include "harness/tests/busy_machine.h"
#include "harness/tests/engine/golden.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class OpsInPlaceTest : public ::testing::Test {
 protected:
  OpsInPlaceTest() : model_(testing::LoadTinyModel()) {}

  std::optional<std::vector<OpInPlace>> Time(std::optional<OpDelay> delay = {}) {
    Decoder decoder(model_.spec, model_.weights,
                    {.max_batch = 2, .max_context = 64, .delayed = DelayedBy(delay, Device::kCpu)});
    auto times = TimeOpsInPlace(decoder, bench_, 3);
    EXPECT_EQ(decoder.Pages().NumFree(), decoder.Pages().NumPages());
    EXPECT_FALSE(decoder.HasWork());
    return times;
  }

  testing::LoadedModel model_;
  BenchOptions bench_{.batch = 2, .prompt_tokens = 8, .new_tokens = 12};
};

TEST_F(OpsInPlaceTest, EveryOpButTheFirstIsTimed) {
  const std::optional<std::vector<OpInPlace>> times = Time();
  ASSERT_TRUE(times);
  std::map<StepOp, OpInPlace> ops;
  for (const OpInPlace& op : *times) ops[op.op] = op;
  EXPECT_EQ(ops.size(), 8u);
  EXPECT_FALSE(ops.at(StepOp::kEmbedding).time);
  EXPECT_EQ(ops.at(StepOp::kDown).launches, model_.spec.num_layers);
  EXPECT_EQ(ops.at(StepOp::kLmHead).launches, 1);
  for (const auto& [op, timed] : ops) {
    if (op != StepOp::kEmbedding) {
      EXPECT_TRUE(timed.time) << Name(op);
    }
  }
}

// A delay of an op is found in it, for each of its launches, and in no op beside it.
TEST_F(OpsInPlaceTest, DelayOfAnOpIsFoundInThatOp) {
  constexpr double kDelayUs = 2000;
  for (const StepOp delayed : {StepOp::kQkv, StepOp::kDown, StepOp::kLmHead}) {
    EXPECT_TRUE(testing::InOneOfTenRuns([&] {
      const std::optional<std::vector<OpInPlace>> times =
          Time(OpDelay{.op = delayed, .us = kDelayUs});
      return times && std::ranges::all_of(*times, [&](const OpInPlace& op) {
               if (!op.time) return true;
               const double added = kDelayUs * static_cast<double>(op.launches), us = op.time->us;
               return op.op == delayed ? us > 0.95 * added && us < 1.5 * added
                                       : us < 0.5 * kDelayUs;
             });
    })) << Name(delayed);
  }
}

// A trace of graphs in which a stamp behind an op makes it end later by a time of its own, as far
// as the step's last op, behind which nothing starts.
class StampTrace {
 public:
  explicit StampTrace(std::vector<StepOp> order) : order_(std::move(order)) {}

  void AddGraph(size_t from, size_t to) {
    AddStamp();
    for (size_t launch = from + 1; launch <= to; ++launch) {
      const bool stamped = launch == to && to < order_.size();
      AddKernel("kernel", kOpNs + (stamped ? DelayNs(order_[launch - 1]) : 0));
    }
    AddStamp();
    now_ns_ += 10 * kOpNs;  // the rest of the step, and the pause until the next one
  }
  std::vector<TracedKernel> Kernels() const { return kernels_; }

  static int64_t DelayNs(StepOp op) {
    return op == StepOp::kQkv ? 250 : op == StepOp::kChunkDecode ? 100 : 0;
  }

 private:
  static constexpr int64_t kOpNs = 3000;
  void AddStamp() { AddKernel("a StampKernel", 500); }
  void AddKernel(const char* name, int64_t ns) {
    kernels_.push_back({.begin_ns = now_ns_, .end_ns = now_ns_ + ns, .name = name});
    now_ns_ += ns;
  }

  std::vector<StepOp> order_;
  std::vector<TracedKernel> kernels_;
  int64_t now_ns_ = 0;
};

TEST_F(OpsInPlaceTest, EffectsOfStampsAreTheDelaysOfAnOpLessThoseOfTheOpBefore) {
  std::vector<StepOp> order{StepOp::kEmbedding};
  constexpr int kLayers = 3;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const StepOp op : {StepOp::kQkv, StepOp::kChunkDecode, StepOp::kAttentionOutput,
                            StepOp::kGateUp, StepOp::kDown}) {
      order.push_back(op);
    }
  }
  order.push_back(StepOp::kLmHead);
  StampTrace trace(order);
  for (int round = 0; round < 2; ++round) {
    // As TimeOpsInPlace has them: windows of five launches, each up to ten launches long.
    for (size_t to = 1; to <= 10; ++to) trace.AddGraph(0, to);
    for (size_t to = 10; to <= 15; ++to) trace.AddGraph(5, to);
    for (size_t to = 15; to <= 17; ++to) trace.AddGraph(10, to);
  }
  const StampEffects effects = EffectsOfStamps(trace.Kernels(), order);
  EXPECT_NEAR(effects.at(StepOp::kQkv), kLayers * 0.25, 1e-9);
  EXPECT_NEAR(effects.at(StepOp::kChunkDecode), kLayers * (0.1 - 0.25), 1e-9);
  EXPECT_NEAR(effects.at(StepOp::kAttentionOutput), kLayers * -0.1, 1e-9);
  EXPECT_NEAR(effects.at(StepOp::kDown), 0, 1e-9);

  // A step of one window, whose last graph is followed by the first one of the next round.
  const std::vector<StepOp> few{StepOp::kEmbedding, StepOp::kQkv, StepOp::kChunkDecode,
                                StepOp::kLmHead};
  StampTrace short_trace(few);
  for (int round = 0; round < 2; ++round) {
    for (size_t to = 1; to <= few.size(); ++to) short_trace.AddGraph(0, to);
  }
  EXPECT_NEAR(EffectsOfStamps(short_trace.Kernels(), few).at(StepOp::kQkv), 0.25, 1e-9);

  std::vector<TracedKernel> kernels = trace.Kernels();
  kernels.pop_back();  // a stamp
  EXPECT_THROW(EffectsOfStamps(kernels, order), RuntimeFailure);
  EXPECT_THROW(EffectsOfStamps({}, order), RuntimeFailure);
}

TEST_F(OpsInPlaceTest, TheProfileShowsTheTimesOfItsOps) {
  StepProfile profile{.method = "cupti",
                      .steps = 1,
                      .step_us = 105,
                      .ops = {{.op = "down", .kernel = "linear", .launches = 28, .us = 60},
                              {.op = "embedding", .kernel = "embedding", .launches = 1, .us = 40}},
                      .host_gap_us = 5};
  AddInPlaceTimes(
      {{.op = StepOp::kDown, .launches = 28, .time = InPlaceTime{.us = 57, .ci95_us = {56, 58}}},
       {.op = StepOp::kEmbedding, .launches = 1}},
      {{StepOp::kDown, {.us = 59, .stamps_us = 3}}}, profile);
  ASSERT_TRUE(profile.ops[0].in_place);
  EXPECT_EQ(profile.ops[0].in_place->us, 57);
  EXPECT_EQ(profile.ops[0].in_place->traced.value().stamps_us, 3);
  EXPECT_FALSE(profile.ops[1].in_place);
  const std::string table = ProfileTable({}, {.profile = profile}, 0.1);
  EXPECT_NE(table.find("60.0 us  57.1%      57.0 us in place, -5.0%\n"), std::string::npos)
      << table;
  EXPECT_NE(table.find("40.0 us  38.1%\n"), std::string::npos) << table;
}

TEST_F(OpsInPlaceTest, InterruptionGivesNoTimes) {
  std::atomic<bool> interrupted = true;
  bench_.interrupted = &interrupted;
  EXPECT_FALSE(Time());
}

TEST_F(OpsInPlaceTest, TooSmallADecoderIsRefused) {
  bench_.batch = 3;
  EXPECT_THROW(Time(), InvalidArgument);
}

}  // namespace
}  // namespace tokline
