// Divides made-up traces into ops, gaps and what is unexplained, compared with a count instant by
// instant, and gives kernels their ops by their places.
#include "harness/measure/step_partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;

const std::vector<OpTime> kOps = {{.op = "qkv", .kernel = "rmsnorm_qkv", .launches = 28},
                                  {.op = "down", .kernel = "linear", .launches = 14}};
constexpr size_t kQkv = 0, kDown = 1;

double Us(const StepProfile& profile, const std::string& op) {
  for (const OpTime& time : profile.ops) {
    if (time.op == op) return time.us;
  }
  return -1;
}

// What is measured of a step.
double Explained(const StepProfile& profile) {
  double sum = profile.device_gap_us + profile.host_gap_us + profile.tracing_us.value_or(0);
  for (const OpTime& time : profile.ops) sum += time.us;
  return sum;
}

StepProfile Split(const std::vector<WorkSpan>& spans, int64_t steps, double step_us) {
  return PartitionSteps("cupti", spans, kOps, steps, step_us);
}

// Spans of one step in the order of their work.
std::vector<WorkSpan> OneStep(std::vector<WorkSpan> spans) {
  for (size_t i = 0; i < spans.size(); ++i) spans[i].number = static_cast<int64_t>(i);
  return spans;
}

// A trace of steps of 80 us: qkv and down in turn, 8 us each and 1 us apart, and 9 us between
// steps. If they are `dependent`, each but the first of a step begins 2 us before its predecessor
// ends, as under programmatic dependent launch.
constexpr int64_t kTraceSteps = 10, kTraceKernels = 8;
constexpr double kTraceStepUs = 80;
std::vector<WorkSpan> Trace(bool dependent) {
  std::vector<WorkSpan> spans;
  for (int64_t number = 0; number < kTraceSteps * kTraceKernels; ++number) {
    const int64_t place = number % kTraceKernels, step = number / kTraceKernels;
    const int64_t begin = 80000 * step + 9000 * place;
    spans.push_back({.begin_ns = begin - (dependent && place > 0 ? 3000 : 0),
                     .end_ns = begin + 8000,
                     .step = step,
                     .number = number,
                     .op = number % 2 == 0 ? kQkv : kDown});
  }
  return spans;
}

TEST(StepPartitionTest, GapsWithinAStepAndBetweenStepsAreToldApart) {
  const StepProfile profile =
      Split({{.begin_ns = 1000, .end_ns = 3000, .step = 0, .number = 0, .op = kQkv},
             {.begin_ns = 4000, .end_ns = 9000, .step = 0, .number = 1, .op = kDown},
             {.begin_ns = 19000, .end_ns = 20000, .step = 1, .number = 2, .op = kQkv},
             {.begin_ns = 23000, .end_ns = 27000, .step = 1, .number = 3, .op = kDown}},
            2, 20);
  EXPECT_EQ(profile.method, "cupti");
  EXPECT_EQ(profile.steps, 2);
  EXPECT_DOUBLE_EQ(profile.step_us, 20);
  ASSERT_EQ(profile.ops.size(), 2u);
  EXPECT_EQ(profile.ops[0].kernel, "rmsnorm_qkv");
  EXPECT_EQ(profile.ops[0].launches, 28);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv"), 1.5);
  EXPECT_DOUBLE_EQ(Us(profile, "down"), 4.5);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 2);  // 1 + 3, of two steps
  EXPECT_DOUBLE_EQ(profile.host_gap_us, 10);   // the only one
  EXPECT_DOUBLE_EQ(profile.unexplained_us, 2);
}

TEST(StepPartitionTest, OverlapBelongsToTheKernelThatBeganFirst) {
  // As dependent launches overlap: each begins while its predecessor runs.
  const StepProfile profile = Split(OneStep({{.begin_ns = 0, .end_ns = 5000, .op = kQkv},
                                             {.begin_ns = 2000, .end_ns = 9000, .op = kDown},
                                             {.begin_ns = 3000, .end_ns = 12000, .op = kQkv}}),
                                    1, 12);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv"), 8);
  EXPECT_DOUBLE_EQ(Us(profile, "down"), 4);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 0);
  EXPECT_DOUBLE_EQ(profile.unexplained_us, 0);
}

TEST(StepPartitionTest, KernelInsideAnotherOwnsNothing) {
  const StepProfile profile = Split(OneStep({{.begin_ns = 0, .end_ns = 9000, .op = kQkv},
                                             {.begin_ns = 2000, .end_ns = 4000, .op = kDown},
                                             {.begin_ns = 10000, .end_ns = 11000, .op = kQkv}}),
                                    1, 11);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv"), 10);
  EXPECT_DOUBLE_EQ(Us(profile, "down"), 0);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 1);  // the inner one's end began no gap
}

TEST(StepPartitionTest, CompleteTraceLeavesNothingUnexplained) {
  for (const bool dependent : {false, true}) {
    const StepProfile profile = Split(Trace(dependent), kTraceSteps, kTraceStepUs);
    EXPECT_NEAR(profile.unexplained_us, 0, 1e-9) << dependent;
    EXPECT_DOUBLE_EQ(profile.host_gap_us, 9) << dependent;
    EXPECT_DOUBLE_EQ(profile.device_gap_us, dependent ? 0 : 7);
  }
}

// A missing op must not turn into a gap: the time of the two around it would be blamed.
TEST(StepPartitionTest, OpThatIsLeftOutOfTheTraceIsUnexplained) {
  for (const bool dependent : {false, true}) {
    std::vector<WorkSpan> spans = Trace(dependent);
    std::erase_if(spans, [](const WorkSpan& span) { return span.op == kDown; });
    const StepProfile profile = Split(spans, kTraceSteps, kTraceStepUs);
    EXPECT_DOUBLE_EQ(profile.device_gap_us, 0) << dependent;
    // Every gap has a kernel of down beside it. One that is dependent runs 3 us longer, of which
    // 2 us overlap with its predecessor.
    const double explained = 4 * 8 + (dependent ? 3 * 3 : 0);
    EXPECT_NEAR(profile.unexplained_us, kTraceStepUs - explained, 1e-9) << dependent;
  }
}

TEST(StepPartitionTest, KernelThatIsLeftOutOfOneStepIsUnexplainedToo) {
  std::vector<WorkSpan> spans = Trace(false);
  spans.erase(spans.begin() + 3);
  const StepProfile profile = Split(spans, kTraceSteps, kTraceStepUs);
  EXPECT_NEAR(profile.unexplained_us, (8 + 2) / static_cast<double>(kTraceSteps), 1e-9);
}

// With stamps of steps that the trace does not lengthen.
StepProfile Stamped(const std::vector<WorkSpan>& spans, double gap_us) {
  const StampedSteps stamped{.gap_us = gap_us, .busy_us = kTraceStepUs - gap_us};
  return PartitionSteps("cupti", spans, kOps, kTraceSteps, kTraceStepUs,
                        TraceCost{.untraced = stamped, .traced = stamped});
}

TEST(StepPartitionTest, GapThatIsMistimedIsUnexplained) {
  EXPECT_NEAR(Stamped(Trace(true), 9).unexplained_us, 0, 1e-9);
  EXPECT_NEAR(Stamped(Trace(true), 4).unexplained_us, 5, 1e-9);
  EXPECT_NEAR(Stamped(Trace(true), 39).unexplained_us, -30, 1e-9);
  std::vector<WorkSpan> late = Trace(false);  // the device's clock runs 10 % fast within steps
  for (WorkSpan& span : late) {
    const int64_t step_begin = 80000 * span.step;
    span.begin_ns += (span.begin_ns - step_begin) / 10;
    span.end_ns += (span.end_ns - step_begin) / 10;
  }
  EXPECT_NEAR(Stamped(late, 9).unexplained_us, -7.1, 1e-9);
}

// Without the trace a step takes 70 us, 6 of them between two steps: the trace adds 7 to the ops
// and 3 to the gap.
TEST(StepPartitionTest, WhatTheTraceAddsIsAPartOfItsOwn) {
  const auto split = [](const std::vector<WorkSpan>& spans, double mistimed_us = 0) {
    const TraceCost cost{.untraced = {.gap_us = 6 + mistimed_us, .busy_us = 64 - mistimed_us},
                         .traced = {.gap_us = 9 + mistimed_us, .busy_us = 71 - mistimed_us}};
    return PartitionSteps("cupti", spans, kOps, kTraceSteps, 70, cost);
  };
  const StepProfile profile = split(Trace(true));
  EXPECT_DOUBLE_EQ(profile.step_us, 70);
  EXPECT_DOUBLE_EQ(profile.host_gap_us, 6);
  EXPECT_NEAR(profile.tracing_us.value(), -7, 1e-9);
  EXPECT_NEAR(profile.unexplained_us, 0, 1e-9);
  EXPECT_NEAR(Explained(profile), 70, 1e-9);
  // It hides neither an op that is left out nor a gap that the stamps mistime.
  std::vector<WorkSpan> spans = Trace(true);
  std::erase_if(spans, [](const WorkSpan& span) { return span.op == kDown; });
  const StepProfile without = split(spans);
  EXPECT_NEAR(without.tracing_us.value(), -7, 1e-9);
  EXPECT_NEAR(without.unexplained_us, 71 - (4 * 8 + 3 * 3), 1e-9);
  EXPECT_NEAR(split(Trace(true), 4).tracing_us.value(), -7, 1e-9);
  EXPECT_NEAR(split(Trace(true), 4).unexplained_us, -4, 1e-9);
  EXPECT_FALSE(Split(Trace(true), kTraceSteps, kTraceStepUs).tracing_us.has_value());
}

TEST(StepPartitionTest, OrderOfSpansDoesNotMatterAndEveryInstantCountsOnce) {
  std::mt19937 rng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<WorkSpan> spans;
    int64_t now = static_cast<int64_t>(rng() % 100);
    const int64_t steps = 1 + rng() % 5;
    for (int64_t step = 0; step < steps; ++step) {
      for (int i = 0; i < 6; ++i) {
        spans.push_back({.begin_ns = now,
                         .end_ns = now + 1 + static_cast<int64_t>(rng() % 60),
                         .step = step,
                         .number = std::ssize(spans),
                         .op = rng() % 2});
        now += 1 + static_cast<int64_t>(rng() % 70);
      }
    }
    const int64_t total = 20000;
    const StepProfile sorted = Split(spans, steps, 20);
    // At each instant the span that began first owns it: counted instant by instant.
    std::vector<double> own(kOps.size());
    double idle = 0;  // between the first begin and the last end
    for (int64_t t = 0, ended = 0; t < total; ++t) {
      const auto owner = std::ranges::find_if(
          spans, [t](const WorkSpan& span) { return span.begin_ns <= t && t < span.end_ns; });
      if (owner == spans.end()) continue;
      own[owner->op] += 1;
      if (ended > 0) idle += static_cast<double>(t - ended);
      ended = t + 1;
    }
    for (size_t i = 0; i < kOps.size(); ++i) {
      EXPECT_NEAR(sorted.ops[i].us, 1e-3 * own[i] / static_cast<double>(steps), 1e-12) << round;
    }
    const auto gaps = [steps](const StepProfile& profile) {
      return profile.device_gap_us * static_cast<double>(steps) +
             profile.host_gap_us * static_cast<double>(steps - 1);
    };
    EXPECT_NEAR(gaps(sorted), 1e-3 * idle, 1e-9) << round;
    EXPECT_NEAR(Explained(sorted) + sorted.unexplained_us, sorted.step_us, 1e-9);
    std::ranges::shuffle(spans, rng);
    EXPECT_DOUBLE_EQ(gaps(Split(spans, steps, 20)), gaps(sorted));
  }
}

TEST(StepPartitionTest, ImpossibleTimesAreRefused) {
  const WorkSpan span{.begin_ns = 0, .end_ns = 10, .op = kQkv};
  EXPECT_THROW(Split({span}, 0, 10), InvalidArgument);
  EXPECT_THROW(
      PartitionSteps("cupti", {&span, 1}, kOps, 1, 10, TraceCost{.untraced = {.gap_us = -1}}),
      InvalidArgument);
  EXPECT_THROW(Split({{.begin_ns = 5, .end_ns = 4}}, 1, 10), InvalidArgument);
  EXPECT_THROW(Split({{.begin_ns = 1, .end_ns = 4, .op = 2}}, 1, 10), InvalidArgument);
}

TEST(GapBetweenStepsTest, IsTheMeanFromTheEndOfAStepToTheBeginOfTheNext) {
  const StampedSteps three = ReadStamps(std::vector<int64_t>{5, 1005, 4005, 5005, 6005, 9005}, 3);
  EXPECT_DOUBLE_EQ(three.gap_us, 2);
  EXPECT_DOUBLE_EQ(three.busy_us, 5.0 / 3);
  EXPECT_DOUBLE_EQ(ReadStamps(std::vector<int64_t>{5, 1005}, 1).gap_us, 0);
}

TEST(GapBetweenStepsTest, StampsThatFitNoStepsAreRefused) {
  EXPECT_THROW(ReadStamps(std::vector<int64_t>{5, 10, 15}, 2), RuntimeFailure);
  EXPECT_THROW(ReadStamps(std::vector<int64_t>{5, 10, 15, 20, 25}, 2), RuntimeFailure);
  EXPECT_THROW(ReadStamps(std::vector<int64_t>{5, 10, 9, 20}, 2), RuntimeFailure);
}

TracedKernel Kernel(int64_t begin_ns, const std::string& name) {
  return {.begin_ns = begin_ns, .end_ns = begin_ns + 5, .name = name};
}

// qkv is two kernels, down one.
const std::vector<size_t> kPlaces = {kQkv, kQkv, kDown};

std::vector<TracedKernel> TwoSteps() {
  return {Kernel(0, "norm"),   Kernel(10, "gemm"),  Kernel(20, "skinny"),
          Kernel(100, "norm"), Kernel(110, "gemm"), Kernel(120, "skinny")};
}

TEST(AttributeByPositionTest, EachKernelGetsTheOpOfItsPlaceInWhateverOrderItIsReported) {
  std::vector<TracedKernel> kernels = TwoSteps();
  std::ranges::reverse(kernels);
  const Attribution result = AttributeByPosition(kernels, kPlaces, kOps, 2);
  EXPECT_EQ(result.mismatch, "");
  ASSERT_EQ(result.spans.size(), 6u);
  for (const WorkSpan& span : result.spans) {
    EXPECT_EQ(span.op, span.begin_ns % 100 == 20 ? kDown : kQkv) << span.begin_ns;
    EXPECT_EQ(span.step, span.begin_ns / 100) << span.begin_ns;
    EXPECT_EQ(span.end_ns, span.begin_ns + 5);
    EXPECT_EQ(&span - result.spans.data(), span.number);
  }
}

TEST(AttributeByPositionTest, KernelOfNoOpIsUnexplained) {
  const Attribution result =
      AttributeByPosition(TwoSteps(), std::vector<size_t>{kQkv, kNoOp, kDown}, kOps, 2);
  EXPECT_EQ(result.spans.size(), 4u);
  const StepProfile profile = Split(result.spans, 2, 0.1);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv") + Us(profile, "down"), 0.01);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 0);  // both gaps are beside it
  EXPECT_DOUBLE_EQ(profile.host_gap_us, 0.075);
  EXPECT_NEAR(profile.unexplained_us, 0.015, 1e-12);
}

TEST(AttributeByPositionTest, MissingOrExtraKernelIsAMismatchAndNoGuess) {
  std::vector<TracedKernel> kernels = TwoSteps();
  kernels.pop_back();
  const Attribution missing = AttributeByPosition(kernels, kPlaces, kOps, 2);
  EXPECT_THAT(missing.mismatch, HasSubstr("5 kernels, 2 steps of 3 kernels have 6"));
  EXPECT_TRUE(missing.spans.empty());
  kernels = TwoSteps();
  kernels.push_back(Kernel(130, "other"));
  EXPECT_NE(AttributeByPosition(kernels, kPlaces, kOps, 2).mismatch, "");
  EXPECT_NE(AttributeByPosition({}, {}, kOps, 2).mismatch, "");
}

TEST(AttributeByPositionTest, KernelsThatChangedPlacesAreAMismatch) {
  std::vector<TracedKernel> kernels = TwoSteps();
  std::swap(kernels[4].name, kernels[5].name);
  const Attribution result = AttributeByPosition(kernels, kPlaces, kOps, 2);
  EXPECT_THAT(result.mismatch, HasSubstr("kernel 1 of a step is gemm in the first and skinny"));
  EXPECT_TRUE(result.spans.empty());
}

TEST(AttributeByPositionTest, AnOpMayChangeFromOneOfItsKernelsToAnother) {
  std::vector<TracedKernel> kernels = TwoSteps();
  kernels[2].name = "tokline::linear::FewTokens";
  kernels[5].name = "tokline::linear::ManyTokens";
  EXPECT_EQ(AttributeByPosition(kernels, kPlaces, kOps, 2).mismatch, "");
  kernels[5].name = "tokline::norm::ManyTokens";
  EXPECT_NE(AttributeByPosition(kernels, kPlaces, kOps, 2).mismatch, "");
}

}  // namespace
}  // namespace tokline
