// Checks what a row contains besides its figure, measured on the simulated device.
#include "benches/measure_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>

#include "benches/check_case.h"
#include "benches/tests/simulated_case.h"
#include "harness/measure/timing.h"
#include "harness/platform/interrupt.h"

namespace tokline::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Buffers = SimulatedCase::Buffers;
using KernelRun = SimulatedDevice::KernelRun;

constexpr uint64_t kPowerCap = 0x4;  // NVML's bits
constexpr uint64_t kIdle = 0x1;

class MeasureRowTest : public ::testing::Test {
 protected:
  KernelMeasurement Honest(const SimulatedExecution& execution,
                           const SimulatedCase::Options& options = {}) {
    return Measure(HonestLauncher(device_), options, execution);
  }

  // Measures the honest kernel with these options of a row and these peaks.
  KernelMeasurement HonestWith(const RowOptions& row, const SimulatedExecution& execution,
                               uint64_t seed = 1, const SimulatedCase::Options& options = {},
                               std::optional<Peaks> peaks = std::nullopt) {
    PreparedCase prepared(std::make_unique<SimulatedCase>(HonestLauncher(device_), options),
                          execution);
    KernelMeasurement m;
    m.limits.peaks = peaks;
    std::mt19937_64 rng(seed);
    MeasureRow(prepared, execution, row, rng, m);
    EXPECT_THAT(m.trouble.failure, IsEmpty());
    return m;
  }

  SimulatedDevice device_;
};

TEST_F(MeasureRowTest, ARowSaysHowItWasMeasured) {
  const KernelMeasurement m = Honest(SimulatedExecution(device_));
  EXPECT_THAT(m.trouble.failure, IsEmpty());
  EXPECT_EQ(m.cache, "cold");
  EXPECT_EQ(m.samples.buffer_sets, 21);  // 16 KiB each; together more than 5 times 64 KiB
  EXPECT_EQ(m.samples.launches_per_sample % m.samples.buffer_sets, 0);
  EXPECT_EQ(m.memory_bytes, 3 * 8192);
  EXPECT_EQ(m.samples.us.size(), static_cast<size_t>(kMinSamples));
  EXPECT_EQ(m.samples.stopped, "precise");
  EXPECT_TRUE(m.verified.before && m.verified.after);
  EXPECT_EQ(m.verified.audits, 3);
  ASSERT_TRUE(m.samples.fresh_us.has_value());
  EXPECT_GT(*m.samples.fresh_us, 0);
  EXPECT_THAT(m.trouble.disturbed, IsEmpty());
}

TEST_F(MeasureRowTest, ANoisyRowTakesMoreSamplesAndEndsWithItsTime) {
  const KernelMeasurement m = Honest(SimulatedExecution(device_, /*noise=*/0.9));
  EXPECT_THAT(m.trouble.failure, IsEmpty());
  EXPECT_EQ(m.samples.stopped, "time");
  EXPECT_GT(m.samples.us.size(), 100u);
  EXPECT_EQ(m.verified.audits, 3);
}

TEST_F(MeasureRowTest, EveryStatedNumberOfSamplesIsAudited) {
  const SimulatedExecution execution(device_);
  for (const int samples : {kMinSamples, kMinSamples + 1, 20}) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const KernelMeasurement m = HonestWith({.rule = {.samples = samples}}, execution, seed);
      ASSERT_EQ(m.samples.us.size(), static_cast<size_t>(samples)) << "seed " << seed;
      ASSERT_EQ(m.verified.audits, 3);
    }
  }
}

TEST_F(MeasureRowTest, AuditsStandWhereNoLaunchCanForeseeThem) {
  std::set<int> places;  // numbers of launches before the first audit
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int launches = 0;
    std::map<float, int> first_launch;  // by the first element of the inputs in one buffer set
    const float* set = nullptr;
    const auto launcher = LauncherOf(device_, [&](const Buffers& b, KernelRun& run) {
      if (set == nullptr) set = b.x;
      if (b.x == set) first_launch.try_emplace(b.x[0], launches);
      ++launches;
      Triple(b, run);
    });
    ASSERT_THAT(Measure(launcher, {}, SimulatedExecution(device_), seed).trouble.failure,
                IsEmpty());
    std::vector<int> begins;
    for (const auto& [value, launch] : first_launch) begins.push_back(launch);
    std::sort(begins.begin(), begins.end());
    ASSERT_EQ(begins.size(), 4u) << "before timing, and in each audit";
    places.insert(begins[1]);
  }
  EXPECT_GE(places.size(), 5u);
}

TEST_F(MeasureRowTest, TheLargestErrorOfAllComparisonsIsReported) {
  int launches = 0;
  const auto launcher = LauncherOf(device_, [&](const Buffers& b, KernelRun& run) {
    Triple(b, run);
    if (launches++ == 0) b.out[5] = std::nextafter(b.out[5], 2 * b.out[5]);
  });
  const KernelMeasurement m = Measure(launcher, {}, SimulatedExecution(device_));
  EXPECT_THAT(m.trouble.failure, IsEmpty());
  EXPECT_NEAR(m.verified.max_error_over_bound, 1, 1e-6);
}

TEST_F(MeasureRowTest, ADisturbedRowIsRepeated) {
  SimulatedExecution execution(device_);
  execution.states = {{.throttle_reasons = kPowerCap}};
  const KernelMeasurement m = Honest(execution);
  EXPECT_THAT(m.trouble.disturbed, IsEmpty());
  EXPECT_EQ(m.samples.us.size(), static_cast<size_t>(kMinSamples));
  EXPECT_EQ(m.verified.audits, 3);
  EXPECT_THAT(execution.states, IsEmpty());
}

// Returns the total time of all samples.
double SampledUs(const KernelMeasurement& m) {
  double us = 0;
  for (const double sample : m.samples.us) us += sample * m.samples.launches_per_sample;
  return us;
}

// Reaches its power cap after it was busy for more than `kBusyUs` since the last rest.
class HotExecution : public SimulatedExecution {
 public:
  explicit HotExecution(SimulatedDevice& device) : SimulatedExecution(device), device_(device) {}
  GpuState State() const override {
    return {.throttle_reasons = device_.now_us() - rest_ended_us_ > kBusyUs ? kPowerCap : kIdle};
  }
  void Rest(double us) const override {
    SimulatedExecution::Rest(us);
    rest_ended_us_ = device_.now_us();
  }

 private:
  static constexpr double kBusyUs = 5000;
  SimulatedDevice& device_;
  mutable double rest_ended_us_ = 0;
};

TEST_F(MeasureRowTest, ARowThatMetThePowerCapIsRepeatedWithRests) {
  const HotExecution execution(device_);
  const KernelMeasurement m = Honest(execution);
  EXPECT_THAT(m.trouble.failure, IsEmpty());
  EXPECT_TRUE(m.samples.rested);
  EXPECT_THAT(m.trouble.disturbed, IsEmpty());
  EXPECT_EQ(m.verified.audits, 3);
  EXPECT_NEAR(execution.rested_us, 200'000 + 8 * SampledUs(m), 1e-3 * SampledUs(m));
  EXPECT_EQ(KernelRow(m)["rested"], true);
}

// Reaches its power cap however long it rests.
class AlwaysHotExecution : public SimulatedExecution {
 public:
  using SimulatedExecution::SimulatedExecution;
  GpuState State() const override { return {.throttle_reasons = kPowerCap}; }
};

TEST_F(MeasureRowTest, ARowThatMeetsThePowerCapDespiteRestsGetsLongerOnes) {
  const AlwaysHotExecution execution(device_);
  const KernelMeasurement m = Honest(execution);
  EXPECT_TRUE(m.samples.rested);
  EXPECT_EQ(m.trouble.disturbed, "throttled: power cap");
  // Only the last repeat counts; those before it end when the cap is reached.
  EXPECT_NEAR(execution.rested_us, 2 * 200'000 + 30 * SampledUs(m), 1e-3 * SampledUs(m));
}

TEST_F(MeasureRowTest, ARowThatTheTensorCoresLimitRestsFromItsFirstSample) {
  const auto measure = [&](const SimulatedExecution& execution, double flops, double slowdown = 0) {
    return HonestWith(
        {.slowdown_percent = slowdown}, execution, 1,
        {.cost = Cost{.read_bytes = 8192, .write_bytes = 8192, .flops = flops}},
        Peaks{.read_gbps = 1000, .copy_gbps = 1000, .matmul_tflops = 1});  // copying takes 16 ns
  };
  const SimulatedExecution copies(device_);
  EXPECT_FALSE(measure(copies, 15e3).samples.rested);
  EXPECT_EQ(copies.rest_share, 0);
  for (const double slowdown : {0, 5}) {
    const SimulatedExecution execution(device_);
    const KernelMeasurement m = measure(execution, 18e3, slowdown);
    EXPECT_TRUE(m.samples.rested);
    EXPECT_THAT(m.trouble.disturbed, IsEmpty());
    EXPECT_EQ(execution.rest_share, 8) << "the search for a slowdown meets the power cap too";
    EXPECT_NEAR(execution.rested_us, 200'000 + 8 * SampledUs(m), 1e-3 * SampledUs(m));
  }
  const AlwaysHotExecution hot(device_);
  const KernelMeasurement m = measure(hot, 18e3);
  EXPECT_NEAR(hot.rested_us, 2 * 200'000 + 30 * SampledUs(m), 1e-3 * SampledUs(m));
}

// A device whose first measurement of the peaks gave a tenth of what it can reach.
class UnderratedExecution : public SimulatedExecution {
 public:
  UnderratedExecution(SimulatedDevice& device, Peaks again)
      : SimulatedExecution(device), again_(again) {}
  std::optional<Peaks> Measure() const override {
    ++measured;
    return again_;
  }
  mutable int measured = 0;

 private:
  Peaks again_;
};

TEST_F(MeasureRowTest, ARowAboveItsLimitHasTheLimitMeasuredAgainAndStands) {
  const Peaks right = *SimulatedExecution(device_).Measure();
  const auto measure = [&](const Peaks& before, const Peaks& again, int times) {
    const UnderratedExecution execution(device_, again);
    const KernelMeasurement m = HonestWith({}, execution, 1, {}, before);
    EXPECT_EQ(execution.measured, times);
    EXPECT_EQ(execution.rested_us, times * kCoolingUs);  // so that the next row meets no power cap
    const KernelFigures figures = FiguresOf(m);
    EXPECT_THAT(figures.refusal, IsEmpty());
    return figures.shares.limit_is_wrong;
  };
  const Peaks low{.read_gbps = right.read_gbps / 10, .copy_gbps = right.copy_gbps / 10};
  EXPECT_FALSE(measure(right, right, 0));
  EXPECT_FALSE(measure(low, right, 1));
  EXPECT_TRUE(measure(low, low, 1));
}

TEST_F(MeasureRowTest, NothingRestsWhereNoPowerCapWasMet) {
  SimulatedExecution execution(device_);
  execution.states = {{.other_processes = 1}};
  const KernelMeasurement m = Honest(execution);
  EXPECT_THAT(m.trouble.disturbed, IsEmpty()) << "repeated";
  EXPECT_FALSE(m.samples.rested);
  EXPECT_EQ(execution.rested_us, 0);
  EXPECT_EQ(KernelRow(m)["rested"], false);
}

TEST_F(MeasureRowTest, ARowThatStaysDisturbedStandsAndSaysSo) {
  SimulatedExecution execution(device_);
  constexpr size_t kObservations = 1000;
  execution.states.assign(kObservations,
                          {.throttle_reasons = kPowerCap | kIdle, .other_processes = 2});
  const KernelMeasurement m = Honest(execution);
  EXPECT_THAT(m.trouble.failure, IsEmpty());
  EXPECT_EQ(m.trouble.disturbed, "throttled: power cap; 2 other processes on the GPU");
  EXPECT_GE(kObservations - execution.states.size(), 3u * 5);
  EXPECT_EQ(KernelRow(m)["status"], "ok");
}

TEST_F(MeasureRowTest, ARowThatOtherProcessesDisturbIsMeasuredThreeTimes) {
  SimulatedExecution execution(device_);
  constexpr size_t kObservations = 1000;
  execution.states.assign(kObservations, {.other_processes = 2});
  const KernelMeasurement m = Honest(execution);
  EXPECT_EQ(m.trouble.disturbed, "2 other processes on the GPU");
  const size_t observed = kObservations - execution.states.size();
  EXPECT_EQ(observed % 3, 0u) << "three times the same";
  EXPECT_GE(observed, 3u * 5);
}

TEST_F(MeasureRowTest, ADisturbanceWhileSamplesAreTakenCounts) {
  SimulatedExecution execution(device_);
  for (int attempt = 0; attempt < 3; ++attempt) {
    execution.states.insert(execution.states.end(), {{}, {.other_processes = 1}, {}, {}, {}});
  }
  EXPECT_THAT(Honest(execution).trouble.disturbed, HasSubstr("1 other process"));
}

// Its timers are interrupted after a number of samples and must not be used again.
class InterruptedExecution : public SimulatedExecution {
 public:
  InterruptedExecution(SimulatedDevice& device, int samples)
      : SimulatedExecution(device, /*noise=*/0.9), samples_(samples) {}
  std::unique_ptr<LaunchTimer> MakeTimer(const BenchCase& bench_case, const TensorStore& store,
                                         const TimerOptions& options) const override {
    return std::make_unique<Timer>(SimulatedExecution::MakeTimer(bench_case, store, options),
                                   samples_);
  }

 private:
  class Timer : public LaunchTimer {
   public:
    Timer(std::unique_ptr<LaunchTimer> timer, int samples)
        : timer_(std::move(timer)), left_(samples) {}
    int launches_per_sample() const override { return timer_->launches_per_sample(); }
    std::vector<double> Sample(int count, const std::function<void()>& meanwhile) override {
      if (interrupted_) throw std::logic_error("sampled after the interrupt");
      const int given = std::min(count, left_);
      interrupted_ = given < count;
      left_ -= given;
      return timer_->Sample(given, meanwhile);
    }
    Rotation RotateOnce() override { return timer_->RotateOnce(); }

   private:
    std::unique_ptr<LaunchTimer> timer_;
    int left_;
    bool interrupted_ = false;
  };

  int samples_;
};

TEST_F(MeasureRowTest, AnInterruptedRowSaysSoHoweverManySamplesItHas) {
  for (const int samples : {0, 5, kMinSamples, kMinSamples + 3}) {
    const KernelMeasurement m = Honest(InterruptedExecution(device_, samples));
    EXPECT_THAT(m.trouble.failure, IsEmpty());
    EXPECT_TRUE(m.trouble.interrupted);
    EXPECT_EQ(m.samples.us.size(), static_cast<size_t>(samples));
    EXPECT_EQ(KernelRow(m)["reason"], "interrupted");
  }
}

// The user interrupts the second rest.
class ImpatientExecution : public HotExecution {
 public:
  using HotExecution::HotExecution;
  void Rest(double us) const override {
    HotExecution::Rest(us);
    if (++rests_ == 2) std::raise(SIGINT);
  }

 private:
  mutable int rests_ = 0;
};

TEST_F(MeasureRowTest, AnInterruptEndsARowThatRests) {
  // This runs in a separate process, because the interrupt persists.
  EXPECT_EXIT(
      {
        CatchInterrupts();
        const KernelMeasurement m = Honest(ImpatientExecution(device_));
        std::exit(m.trouble.interrupted && m.samples.rested && m.samples.us.size() <= 2 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(MeasureRowTest, AnInjectedSlowdownIsInTheFigure) {
  const SimulatedExecution execution(device_);
  const auto median = [&](double percent) {
    return Median(HonestWith({.slowdown_percent = percent}, execution).samples.us);
  };
  const double plain_us = median(0);
  EXPECT_EQ(execution.rested_us, 0);
  EXPECT_NEAR(median(5) / plain_us, 1.05, 0.005);
  EXPECT_EQ(execution.rested_us, 0);
}

TEST_F(MeasureRowTest, VerifyOnlyTimesNothing) {
  const KernelMeasurement m = HonestWith({.verify_only = true}, SimulatedExecution(device_));
  EXPECT_TRUE(m.verified.before);
  EXPECT_THAT(m.samples.us, IsEmpty());
}

TEST_F(MeasureRowTest, ALaunchThatWritesToItsInputsIsRefused) {
  const auto launcher = LauncherOf(device_, [](const Buffers& b, KernelRun& run) {
    Triple(b, run);
    for (int64_t i = 0; i < b.size; ++i) const_cast<float*>(b.x)[i] += 1;
  });
  int seen_in_inputs = 0;  // by the check of random elements; otherwise later outputs are wrong
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string failure =
        Measure(launcher, {}, SimulatedExecution(device_), seed).trouble.failure;
    ASSERT_NE(failure, "") << seed;
    seen_in_inputs += failure.find("that it was filled with") != std::string::npos;
  }
  EXPECT_GE(seen_in_inputs, 5);
}

TEST(CheckInputsTest, FindsAConstantWhereRandomValuesShouldBe) {
  TensorList tensors;
  tensors.Random(DType::kBf16, 8, 33);
  tensors.Random(DType::kF32, 1, 3);
  TensorStore store(tensors, 2, MakeHostMemory());
  std::mt19937_64 rng(1);
  store.FillRandom(7);
  EXPECT_THAT(CheckInputs(store, 7, rng), IsEmpty());
  EXPECT_THAT(CheckInputs(store, 8, rng), HasSubstr("input tensor 0"));
  for (int copy = 0; copy < 2; ++copy) std::fill_n(store.Set(copy).At<float>(1), 3, 1.5f);
  EXPECT_THAT(CheckInputs(store, 7, rng), HasSubstr("input tensor 1"));
}

TEST(CheckInputsTest, LooksIntoEverySetAndAtEveryPlace) {
  constexpr int64_t kSize = 1000;
  TensorList tensors;
  tensors.Random(DType::kF32, 1, kSize);
  TensorStore store(tensors, 2, MakeHostMemory());
  std::mt19937_64 rng(1);
  const auto found_in_100 = [&](int copy, int64_t first) {
    store.FillRandom(7);
    std::fill_n(store.Set(copy).At<float>(0) + first, kSize - first, 1.5f);
    int found = 0;
    for (int i = 0; i < 100; ++i) found += !CheckInputs(store, 7, rng).empty();
    return found;
  };
  EXPECT_GE(found_in_100(0, 0), 80) << "of 94: it looks at four places";
  EXPECT_GE(found_in_100(1, 0), 80);
  EXPECT_GE(found_in_100(0, kSize / 2), 55) << "of 68";
}

TEST(CheckWorkTest, HalfOfWhatIsReadMustBeRandom) {
  TensorList tensors;
  tensors.Random(DType::kF32, 1, 100);
  tensors.Table(std::vector<float>(200));
  EXPECT_THAT(CheckWork({.read_bytes = 800}, tensors), IsEmpty());
  EXPECT_THAT(CheckWork({.read_bytes = 804}, tensors), HasSubstr("at least half must be"));
}

}  // namespace
}  // namespace tokline::bench
