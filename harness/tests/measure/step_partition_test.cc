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

double Sum(const StepProfile& profile) {
  double sum = profile.device_gap_us + profile.host_gap_us;
  for (const OpTime& time : profile.ops) sum += time.us;
  return sum;
}

StepProfile Split(const std::vector<WorkSpan>& spans, int64_t steps, int64_t total_ns) {
  return PartitionSteps("cupti", spans, kOps, steps, total_ns);
}

TEST(StepPartitionTest, GapsWithinAStepAndBetweenStepsAreToldApart) {
  const StepProfile profile = Split({{.begin_ns = 1000, .end_ns = 3000, .step = 0, .op = kQkv},
                                     {.begin_ns = 4000, .end_ns = 9000, .step = 0, .op = kDown},
                                     {.begin_ns = 19000, .end_ns = 20000, .step = 1, .op = kQkv},
                                     {.begin_ns = 23000, .end_ns = 27000, .step = 1, .op = kDown}},
                                    2, 40000);
  EXPECT_EQ(profile.method, "cupti");
  EXPECT_EQ(profile.steps, 2);
  EXPECT_DOUBLE_EQ(profile.step_us, 20);
  ASSERT_EQ(profile.ops.size(), 2u);
  EXPECT_EQ(profile.ops[0].kernel, "rmsnorm_qkv");
  EXPECT_EQ(profile.ops[0].launches, 28);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv"), 1.5);
  EXPECT_DOUBLE_EQ(Us(profile, "down"), 4.5);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 2);  // 1 + 3
  EXPECT_DOUBLE_EQ(profile.host_gap_us, 12);   // 10 between, 14 before the first and after the last
  EXPECT_DOUBLE_EQ(Sum(profile), profile.step_us);
}

TEST(StepPartitionTest, OverlapBelongsToTheKernelThatBeganFirst) {
  // As dependent launches overlap: each begins while its predecessor runs.
  const StepProfile profile = Split({{.begin_ns = 0, .end_ns = 5000, .step = 0, .op = kQkv},
                                     {.begin_ns = 2000, .end_ns = 9000, .step = 0, .op = kDown},
                                     {.begin_ns = 3000, .end_ns = 12000, .step = 0, .op = kQkv}},
                                    1, 12000);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv"), 8);
  EXPECT_DOUBLE_EQ(Us(profile, "down"), 4);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 0);
  EXPECT_DOUBLE_EQ(profile.host_gap_us, 0);
}

TEST(StepPartitionTest, KernelInsideAnotherOwnsNothing) {
  const StepProfile profile = Split({{.begin_ns = 0, .end_ns = 9000, .step = 0, .op = kQkv},
                                     {.begin_ns = 2000, .end_ns = 4000, .step = 0, .op = kDown},
                                     {.begin_ns = 10000, .end_ns = 11000, .step = 0, .op = kQkv}},
                                    1, 11000);
  EXPECT_DOUBLE_EQ(Us(profile, "qkv"), 10);
  EXPECT_DOUBLE_EQ(Us(profile, "down"), 0);
  EXPECT_DOUBLE_EQ(profile.device_gap_us, 1);  // the inner one's end began no gap
}

TEST(StepPartitionTest, OrderOfSpansDoesNotMatterAndThePartsAddUp) {
  std::mt19937 rng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<WorkSpan> spans;
    int64_t now = static_cast<int64_t>(rng() % 100);
    const int64_t steps = 1 + rng() % 5;
    for (int64_t step = 0; step < steps; ++step) {
      for (int i = 0; i < 6; ++i) {
        spans.push_back({.begin_ns = now,
                         .end_ns = now + static_cast<int64_t>(rng() % 60),
                         .step = step,
                         .op = rng() % 2});
        now += static_cast<int64_t>(rng() % 70);
      }
    }
    const int64_t total = 20000;
    const StepProfile sorted = Split(spans, steps, total);
    // At each instant the span that began first owns it: counted instant by instant.
    std::vector<double> own(kOps.size());
    for (int64_t t = 0; t < total; ++t) {
      for (const WorkSpan& span : spans) {
        if (span.begin_ns <= t && t < span.end_ns) {
          own[span.op] += 1;
          break;
        }
      }
    }
    for (size_t i = 0; i < kOps.size(); ++i) {
      EXPECT_NEAR(sorted.ops[i].us, 1e-3 * own[i] / static_cast<double>(steps), 1e-12) << round;
    }
    EXPECT_NEAR(Sum(sorted), sorted.step_us, 1e-9);
    EXPECT_GE(sorted.device_gap_us, 0);
    EXPECT_GE(sorted.host_gap_us, 0);
    std::ranges::shuffle(spans, rng);
    // Spans that begin at one instant may swap owners; the idle time stays.
    const StepProfile shuffled = Split(spans, steps, total);
    EXPECT_NEAR(shuffled.host_gap_us + shuffled.device_gap_us,
                sorted.host_gap_us + sorted.device_gap_us, 1e-12);
  }
}

TEST(StepPartitionTest, ImpossibleTimesAreRefused) {
  const WorkSpan span{.begin_ns = 0, .end_ns = 10, .step = 0, .op = kQkv};
  EXPECT_THROW(Split({span}, 0, 10), InvalidArgument);
  EXPECT_THROW(Split({span}, 1, 9), InvalidArgument);
  EXPECT_THROW(Split({{.begin_ns = 5, .end_ns = 4, .step = 0}}, 1, 10), InvalidArgument);
  EXPECT_THROW(Split({{.begin_ns = 1, .end_ns = 4, .step = 0, .op = 2}}, 1, 10), InvalidArgument);
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
  const Attribution result = AttributeByPosition(kernels, kPlaces, 2);
  EXPECT_EQ(result.mismatch, "");
  ASSERT_EQ(result.spans.size(), 6u);
  for (const WorkSpan& span : result.spans) {
    EXPECT_EQ(span.op, span.begin_ns % 100 == 20 ? kDown : kQkv) << span.begin_ns;
    EXPECT_EQ(span.step, span.begin_ns / 100) << span.begin_ns;
    EXPECT_EQ(span.end_ns, span.begin_ns + 5);
  }
}

TEST(AttributeByPositionTest, MissingOrExtraKernelIsAMismatchAndNoGuess) {
  std::vector<TracedKernel> kernels = TwoSteps();
  kernels.pop_back();
  const Attribution missing = AttributeByPosition(kernels, kPlaces, 2);
  EXPECT_THAT(missing.mismatch, HasSubstr("5 kernels, 2 steps of 3 kernels have 6"));
  EXPECT_TRUE(missing.spans.empty());
  kernels = TwoSteps();
  kernels.push_back(Kernel(130, "other"));
  EXPECT_NE(AttributeByPosition(kernels, kPlaces, 2).mismatch, "");
  EXPECT_NE(AttributeByPosition({}, {}, 2).mismatch, "");
}

TEST(AttributeByPositionTest, KernelsThatChangedPlacesAreAMismatch) {
  std::vector<TracedKernel> kernels = TwoSteps();
  std::swap(kernels[4].name, kernels[5].name);
  const Attribution result = AttributeByPosition(kernels, kPlaces, 2);
  EXPECT_THAT(result.mismatch, HasSubstr("kernel 1 of a step is gemm in the first and skinny"));
  EXPECT_TRUE(result.spans.empty());
}

}  // namespace
}  // namespace tokline
