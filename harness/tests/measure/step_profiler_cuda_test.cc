// Profiles on the device: by its trace where there is one, by events always.
#include "harness/measure/step_profiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/measure/ablation_bench.h"
#include "harness/measure/delay.h"
#include "harness/measure/kernel_trace.h"
#include "harness/measure/op_delay.h"
#include "harness/measure/step_phases.h"
#include "harness/tests/engine/golden.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

class StepProfilerCudaTest : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    model_ = std::make_unique<testing::LoadedModel>(testing::LoadTinyModel());
  }

  std::unique_ptr<Decoder> MakeDecoder(std::optional<OpDelay> delay = {},
                                       AblationSet ablate = {}) const {
    return std::make_unique<Decoder>(model_->spec, model_->weights,
                                     DecoderOptions{.device = Device::kCuda,
                                                    .dtype = DType::kBf16,
                                                    .max_batch = 4,
                                                    .max_context = 160,
                                                    .page_size = 16,
                                                    .ablate = ablate,
                                                    .delayed = DelayedBy(delay, Device::kCuda)});
  }
  ProfiledSteps Profile(std::optional<OpDelay> delay = {}, AblationSet ablate = {}) const {
    const std::unique_ptr<Decoder> decoder = MakeDecoder(delay, ablate);
    std::optional<ProfiledSteps> profiled =
        ProfileSteps(*decoder, bench_, TimeUntraced(*decoder, bench_));
    if (!profiled) throw RuntimeFailure("interrupted by nobody");
    return *profiled;
  }
  static std::map<std::string, OpTime> ByName(const StepProfile& profile) {
    std::map<std::string, OpTime> times;
    for (const OpTime& time : profile.ops) times[time.op] = time;
    return times;
  }
  // Where the machine has no trace, the method must say so.
  static void ExpectMethod(const ProfiledSteps& profiled) {
    if (profiled.note.empty()) {
      EXPECT_EQ(profiled.profile.method, "cupti");
    } else {
      EXPECT_EQ(profiled.profile.method, "events");
      GTEST_LOG_(WARNING) << "NO TRACE OF KERNELS HERE: " << profiled.note;
    }
  }

  // Null, with the reason printed, where there can be none.
  static std::unique_ptr<KernelTrace> Trace() {
    try {
      return std::make_unique<KernelTrace>();
    } catch (const RuntimeFailure& failure) {
      GTEST_LOG_(WARNING) << "NO TRACE OF KERNELS HERE: " << failure.what();
      return nullptr;
    }
  }

  std::unique_ptr<testing::LoadedModel> model_;
  // From this length on chunk_decode keeps its grid: kernels of other names are no trace of one
  // step.
  BenchOptions bench_{.batch = 4, .prompt_tokens = 48, .new_tokens = 64};
};

TEST_F(StepProfilerCudaTest, AStepOfOneKernelIsOneOp) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "steps are chains of kernels here";
  const ProfiledSteps profiled = Profile();
  ExpectMethod(profiled);
  const auto ops = ByName(profiled.profile);
  EXPECT_EQ(ops.size(), 2u);
  ASSERT_TRUE(ops.contains("decode_step") && ops.contains("sampling"));
  EXPECT_EQ(ops.at("decode_step").launches, 1);
  EXPECT_GT(ops.at("decode_step").us, ops.at("sampling").us);
}

TEST_F(StepProfilerCudaTest, PhasesOfOneKernelAddUpToTheOp) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "steps are chains of kernels here";
  bench_.batch = 1;
  const std::unique_ptr<Decoder> decoder = MakeDecoder();
  const std::optional<UntracedSteps> untraced = TimeUntraced(*decoder, bench_);
  for (const bool traced : {true, false}) {
    const ProfiledSteps profiled =
        ProfileSteps(*decoder, bench_, traced ? untraced : std::nullopt).value();
    const auto ops = ByName(profiled.profile);
    ASSERT_TRUE(ops.contains("decode_step") && ops.contains("sampling"));
    EXPECT_TRUE(ops.at("sampling").phases.empty());
    const OpTime& op = ops.at("decode_step");
    std::vector<std::string> names;
    double sum_us = 0;
    for (const PhaseTime& phase : op.phases) {
      names.push_back(phase.phase);
      sum_us += phase.us;
      EXPECT_GT(phase.us, 0) << phase.phase;
    }
    EXPECT_EQ(names, (std::vector<std::string>{"qkv", "chunk_decode", "attention_output", "gate_up",
                                               "down", "lm_head"}));
    EXPECT_NEAR(sum_us, op.us, 0.01 * op.us);
  }
}

TEST_F(StepProfilerCudaTest, StampsOfPhasesChangeNoLogit) {
  if (!QueryDeviceFacts().HasHopperCode()) GTEST_SKIP() << "steps are chains of kernels here";
  constexpr int kSteps = 12;
  const auto logits = [&](bool stamped) {
    const std::unique_ptr<Decoder> decoder = MakeDecoder();
    PhaseObserver observer(*decoder);
    const ObservedScope observed(*decoder, stamped ? &observer : nullptr);
    decoder->WarmUp();  // the graphs take the stamps
    const int64_t graph_steps = decoder->GraphSteps();
    const SequenceId id = decoder->AddSequence(std::vector<int32_t>{5, 6, 7}, {}, kSteps);
    std::vector<std::vector<float>> rows;  // the largest of each is the token
    for (int step = 0; step < kSteps; ++step) {
      decoder->Step();
      decoder->Flush();
      rows.push_back(decoder->Logits(id));
    }
    EXPECT_EQ(decoder->GraphSteps() - graph_steps, kSteps - 1);
    std::vector<int64_t> stamps;
    observer.AppendTo(stamps);
    if (stamped) {
      EXPECT_EQ(SharesOfPhases(stamps, model_->spec.num_layers).size(), 6u);
    } else {
      EXPECT_EQ(std::ranges::count(stamps, 0), std::ssize(stamps));
    }
    decoder->DropGraphs();
    return rows;
  };
  EXPECT_EQ(logits(true), logits(false));
}

TEST_F(StepProfilerCudaTest, OpsAndGapsAddUpToTheStep) {
  const ProfiledSteps profiled = Profile({}, ParseAblations("persistent"));
  ExpectMethod(profiled);
  const StepProfile& profile = profiled.profile;
  EXPECT_EQ(profile.steps, profile.method == "cupti" ? 63 : 16);
  EXPECT_EQ(profile.tracing_us.has_value(), profile.method == "cupti");
  double sum = profile.device_gap_us + profile.host_gap_us + profile.tracing_us.value_or(0) +
               profile.unexplained_us;
  for (const OpTime& time : profile.ops) sum += time.us;
  EXPECT_NEAR(sum, profile.step_us, 1e-6 * profile.step_us);
  EXPECT_GE(profile.device_gap_us, 0);
  EXPECT_GE(profile.host_gap_us, 0);
  constexpr double kStampsUs = 5;  // of a step of 54
  EXPECT_LT(std::abs(profile.unexplained_us), 0.02 * profile.step_us + kStampsUs);
  const auto ops = ByName(profile);
  EXPECT_EQ(ops.size(), 8u);
  for (const char* op : {"qkv", "chunk_decode", "attention_output", "gate_up", "down"}) {
    ASSERT_TRUE(ops.contains(op)) << op;
    EXPECT_EQ(ops.at(op).launches, model_->spec.num_layers) << op;
    EXPECT_GT(ops.at(op).us, 0) << op;
  }
  EXPECT_EQ(ops.at("lm_head").launches, 1);
}

TEST_F(StepProfilerCudaTest, WithoutUntracedStepsTheMethodIsEventsAndSaysWhy) {
  const std::unique_ptr<Decoder> decoder = MakeDecoder();
  const std::optional<ProfiledSteps> profiled = ProfileSteps(*decoder, bench_, {});
  ASSERT_TRUE(profiled.has_value());
  EXPECT_EQ(profiled->profile.method, "events");
  EXPECT_EQ(profiled->note, "its steps were not timed without a trace");
}

TEST_F(StepProfilerCudaTest, TraceSeesEveryKernelAndNoOtherOnes) {
  const std::unique_ptr<KernelTrace> trace = Trace();
  if (trace == nullptr) GTEST_SKIP();
  const std::unique_ptr<Backend> backend = MakeCudaBackend();
  constexpr double kDelayUs = 200;
  trace->Take();
  for (int i = 0; i < 3; ++i) Launch(DelayParams{.us = kDelayUs}, {.stream = backend->stream()});
  const std::vector<TracedKernel> kernels = trace->Take();
  ASSERT_EQ(kernels.size(), 3u);
  for (const TracedKernel& kernel : kernels) {
    EXPECT_NE(kernel.name.find("DelayKernel"), std::string::npos) << kernel.name;
    EXPECT_GE(kernel.end_ns - kernel.begin_ns, 195000);
    EXPECT_LE(kernel.end_ns - kernel.begin_ns, 260000);
  }
  EXPECT_TRUE(trace->Take().empty());
}

TEST_F(StepProfilerCudaTest, PrefillWithoutHopperRunsThePortableKernel) {
  const std::unique_ptr<KernelTrace> trace = Trace();
  if (trace == nullptr) GTEST_SKIP();
  const std::unique_ptr<Decoder> decoder = MakeDecoder({}, ParseAblations("hopper"));
  decoder->AddSequence(std::vector<int32_t>{5, 6, 7}, {}, 4);
  trace->Take();
  decoder->Step();
  decoder->Flush();
  int portable = 0;
  for (const TracedKernel& kernel : trace->Take()) {
    portable += kernel.name.find("PortablePrefillKernel") != std::string::npos;
    EXPECT_EQ(kernel.name.find("HopperPrefillKernel"), std::string::npos);
  }
  EXPECT_EQ(portable, model_->spec.num_layers);
}

TEST_F(StepProfilerCudaTest, DelayOfAnOpIsFoundInThatOpByEitherMethod) {
  constexpr double kDelayUs = 300;
  const double added = kDelayUs * static_cast<double>(model_->spec.num_layers);
  for (const StepOp op : {StepOp::kDown, StepOp::kQkv, StepOp::kChunkDecode}) {
    const OpDelay delay{.op = op, .us = kDelayUs};
    // A delayed decoder without graphs is traced as well: its plain launches.
    for (const char* ablated : {"", "graphs", "pdl"}) {
      const ProfiledSteps profiled = Profile(delay, ParseAblations(ablated));
      ExpectMethod(profiled);
      // The delays are most of the step, and each part shows them as the step does.
      EXPECT_LT(std::abs(profiled.profile.unexplained_us), 0.2 * profiled.profile.step_us)
          << Name(op) << " " << ablated;
      for (const auto& [name, time] : ByName(profiled.profile)) {
        if (name == Name(op)) {
          EXPECT_NEAR(time.us, added, 0.2 * added) << name << " " << ablated;
        } else {
          EXPECT_LT(time.us, 0.5 * added) << name << " " << ablated;
        }
      }
    }
  }
}

TEST_F(StepProfilerCudaTest, DelayOfTheHostBeyondTheStepIsFoundInTheHostGap) {
  bench_.host_delay_us = 3000;
  const StepProfile profile = Profile().profile;
  EXPECT_GE(profile.step_us, 3000);
  double ops = 0;
  for (const OpTime& time : profile.ops) ops += time.us;
  EXPECT_LT(ops + profile.device_gap_us, 1500);
  // The gap is measured on its own: without it, most of the step would be unexplained.
  EXPECT_GE(profile.host_gap_us, 1500);
  EXPECT_LT(std::abs(profile.unexplained_us), 0.05 * profile.step_us);
}

TEST_F(StepProfilerCudaTest, PlainCounterpartsOfSeveralKernelsAreToldApart) {
  const ProfiledSteps profiled = Profile({}, ParseAblations("skinny,rmsnorm_qkv,fused_mlp"));
  ExpectMethod(profiled);
  const auto ops = ByName(profiled.profile);
  for (const char* op : {"input_norm", "qkv", "kv_append", "post_norm", "gate_up", "activation"}) {
    ASSERT_TRUE(ops.contains(op)) << op;
    EXPECT_GT(ops.at(op).us, 0) << op;
  }
}

TEST_F(StepProfilerCudaTest, DecoderWritesTheSameTextsAfterAProfile) {
  const auto texts = [&](bool profiled) {
    const std::unique_ptr<Decoder> decoder = MakeDecoder();
    if (profiled) ProfileSteps(*decoder, bench_, TimeUntraced(*decoder, bench_));
    decoder->WarmUp();
    const int64_t graph_steps = decoder->GraphSteps();
    const BenchRepeat run = TimeRepeat(*decoder, bench_, 7).value();
    EXPECT_EQ(decoder->GraphSteps() - graph_steps, bench_.new_tokens - 1);
    std::vector<std::vector<int32_t>> tokens;
    for (const BenchText& text : run.texts) tokens.push_back(text.tokens);
    return tokens;
  };
  EXPECT_EQ(texts(true), texts(false));
}

TEST_F(StepProfilerCudaTest, DelayChangesNoResult) {
  const auto tokens = [&](std::optional<OpDelay> delay) {
    // A delayed step is never one kernel, whose sums have other bits than those of a chain.
    const std::unique_ptr<Decoder> decoder = MakeDecoder(delay, ParseAblations("persistent"));
    decoder->WarmUp();
    return TimeRepeat(*decoder, bench_, 3).value().texts.at(0).tokens;
  };
  EXPECT_EQ(tokens(OpDelay{.op = StepOp::kAttentionOutput, .us = 50}), tokens({}));
}

TEST_F(StepProfilerCudaTest, OpsAloneTakeTheirOwnTimeAndNoOthers) {
  constexpr double kDelayUs = 300;
  const double added = kDelayUs * static_cast<double>(model_->spec.num_layers);
  bench_.repeats = 3;
  const std::unique_ptr<Decoder> with = MakeDecoder();
  const std::unique_ptr<Decoder> without =
      MakeDecoder(OpDelay{.op = StepOp::kDown, .us = kDelayUs});
  with->WarmUp();
  without->WarmUp();
  const AblationRounds down = RunAblation(*with, *without, {StepOp::kDown}, bench_);
  ASSERT_EQ(down.without.alone_us.size(), 3u);
  EXPECT_GE(down.without.alone_us[1], 0.95 * added);
  EXPECT_LT(down.with.alone_us[1], 0.5 * added);
  EXPECT_GE(1e3 * down.without.decode_ms[1], 0.95 * added);
  const AblationRounds others = RunAblation(*with, *without, {StepOp::kQkv}, bench_);
  EXPECT_LT(others.without.alone_us[1], 0.5 * added);
}

}  // namespace
}  // namespace tokline
