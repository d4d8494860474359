// Implements MeasureRow: places audits among the samples, repeats a row that was disturbed, and
// refuses it when something does not hold.
#include "benches/measure_row.h"

#include <algorithm>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include "benches/check_case.h"
#include "benches/verify.h"
#include "harness/measure/nvml.h"
#include "harness/platform/interrupt.h"
#include "kernels/common/error.h"
#include "tokline_rules.h"

namespace tokline::bench {
namespace {

constexpr int kAuditsAmongSamples = 2;
constexpr int kAudits = kAuditsAmongSamples + 1;  // the last audit follows the last sample
constexpr int kMaxRepeats = static_cast<int>(kRestShares.size());  // repeats of a disturbed row

// The device must be idle this soon after the last timed launch.
constexpr double kLateShare = 0.25;
constexpr double kLateUs = 100;

// Thrown to refuse the row.
struct Refusal {
  std::string reason;
};

// Thrown if the device reached its power cap and the row may be repeated with longer rests.
struct PowerCapReached {};

class Measurement {
 public:
  Measurement(PreparedCase& prepared, const Execution& execution, const RowOptions& options,
              std::mt19937_64& rng, KernelMeasurement& m)
      : prepared_(prepared),
        store_(prepared.store),
        execution_(execution),
        options_(options),
        rng_(rng),
        m_(m) {}

  void Run() {
    m_.cost = prepared_.cost;
    m_.cache = prepared_.placement.cache;
    m_.samples.buffer_sets = prepared_.placement.buffer_sets;
    m_.memory_bytes = 0;
    for (const TensorSpec& spec : store_.tensors().specs()) *m_.memory_bytes += spec.Bytes();
    RefuseIf(CheckWork(prepared_.cost, store_.tensors()));
    PrepareExpected(options_.verify_only ? 1 : 1 + kAudits);
    VerifyBefore();
    if (options_.verify_only) return;
    // A row that the tensor cores limit may reach the power cap within its samples, or before them
    // in the search for a slowdown, and NVML reports this too late. Such a row therefore starts as
    // if it had reached the cap once.
    bool reached_cap = IsLimitedByMatmul();
    timer_ = execution_.MakeTimer(*prepared_.bench_case, store_,
                                  {.dependent = options_.dependent,
                                   .slowdown_percent = options_.slowdown_percent,
                                   .rest_share = reached_cap ? kRestShares.front() : 0});
    m_.samples.launches_per_sample = timer_->launches_per_sample();
    int times_reached_cap = 0;
    for (int repeats = reached_cap ? 1 : 0; repeats <= kMaxRepeats; ++repeats) {
      times_reached_cap += reached_cap ? 1 : 0;
      m_.samples.rested = times_reached_cap > 0;
      may_rest_more_ = repeats < kMaxRepeats;
      if (m_.samples.rested) rest_share_ = kRestShares.at(times_reached_cap - 1);
      if (reached_cap) execution_.Rest(kCoolingUs);
      PrepareExpected(kAudits);
      try {
        TimeOnce();
      } catch (const PowerCapReached&) {  // observed_ contains the power cap
      }
      if (m_.trouble.interrupted) return;
      m_.trouble.disturbed = Disturbance(observed_, observed_);
      if (m_.trouble.disturbed.empty()) break;
      reached_cap = ReachedPowerCap(observed_.throttle_reasons.value_or(0));
    }
    CheckFreshTimes();
  }

 private:
  static void RefuseIf(const std::string& reason) {
    if (!reason.empty()) throw Refusal{reason};
  }

  bool IsLimitedByMatmul() const {
    return m_.limits.peaks && FloorOf(m_.cost, *m_.limits.peaks).limit == "matmul";
  }

  int RandomBelow(int end) { return std::uniform_int_distribution<int>(0, end - 1)(rng_); }

  // Compares everything written since the outputs were poisoned with the expected outputs.
  void Compare(bool& verified, const std::string& when) {
    const Comparison comparison = expected_->CompareWith(store_);
    verified = comparison.first_failure.empty();
    m_.verified.max_error_over_bound =
        std::max(m_.verified.max_error_over_bound, comparison.max_error_over_bound);
    if (!verified) throw Refusal{StrCat("unverified ", when, ": ", comparison.first_failure)};
    RefuseIf(CheckInputs(store_, seed_, rng_));
  }

  // Prepares `count` fillings of the inputs and their expected outputs, each on its own thread,
  // since the reference takes longer than the rest of a row. No thread is still running while
  // samples are taken.
  void PrepareExpected(int count) {
    std::vector<std::pair<uint64_t, std::future<std::unique_ptr<ExpectedSample>>>> pending;
    for (int i = static_cast<int>(upcoming_.size()); i < count; ++i) {
      const bool before_timing = !timer_ && i == 0;
      const int copy = before_timing ? 0 : RandomBelow(store_.copies());
      const uint64_t fill_seed = rng_();
      pending.emplace_back(
          fill_seed, std::async(std::launch::async, [this, copy, fill_seed, sample_seed = rng_()] {
            return std::make_unique<ExpectedSample>(*prepared_.bench_case, copy, fill_seed,
                                                    sample_seed);
          }));
    }
    for (auto& [fill_seed, expected] : pending) {
      upcoming_.push_back({fill_seed, expected.get()});
    }
  }

  // Fills all tensors with new contents. Expect() sets their expected outputs afterwards.
  void Refill() {
    expected_.reset();
    seed_ = upcoming_.front().fill_seed;
    store_.Refill(seed_);
  }

  void Expect() {
    expected_ = std::move(upcoming_.front().expected);
    upcoming_.pop_front();
  }

  void VerifyBefore() {
    Refill();
    RefuseIf(CheckInputs(store_, seed_, rng_));
    execution_.Run(*prepared_.bench_case, store_, std::min(store_.copies(), 2), options_.dependent);
    Expect();
    Compare(m_.verified.before, "before timing");
  }

  void TimeOnce() {
    m_.verified.audits = 0;
    fresh_us_.clear();
    late_us_.clear();
    taken_ = 0;
    observed_ = {};
    Observe();
    // Places one audit in each part of the minimum number of samples, but none after the last of
    // them, because the audit at the end would then find nothing that was written since.
    const int before_last = std::max(options_.rule.samples, options_.rule.least) - 1;
    const int part = before_last / kAuditsAmongSamples;
    audit_after_.clear();
    for (int i = 0; i < kAuditsAmongSamples; ++i) {
      audit_after_.insert(i * part + 1 + RandomBelow(part));
    }
    store_.Poison();
    TakenSamples taken = TakeSamples(options_.rule, timer_->launches_per_sample(),
                                     [this](int count) { return Sample(count); });
    m_.samples.us = std::move(taken.us);
    m_.samples.stopped = std::move(taken.stopped);
    m_.trouble.interrupted = taken.interrupted || InterruptRequested();
    if (m_.trouble.interrupted) return;
    Audit();
    Observe();
  }

  void Observe() {
    const GpuState now = execution_.State();
    observed_.throttle_reasons =
        observed_.throttle_reasons.value_or(0) | now.throttle_reasons.value_or(0);
    observed_.other_processes =
        std::max(observed_.other_processes.value_or(0), now.other_processes.value_or(0));
  }

  // Takes `count` samples, and audits at the places drawn for them.
  std::vector<double> Sample(int count) {
    std::vector<double> samples;
    while (static_cast<int>(samples.size()) < count) {
      const int left = count - static_cast<int>(samples.size());
      const auto next = audit_after_.upper_bound(taken_);
      const int most = next == audit_after_.end() ? left : std::min(left, *next - taken_);
      const int wanted = m_.samples.rested ? 1 : most;
      const std::vector<double> got = timer_->Sample(wanted, [this] { Observe(); });
      samples.insert(samples.end(), got.begin(), got.end());
      taken_ += static_cast<int>(got.size());
      if (static_cast<int>(got.size()) < wanted || InterruptRequested()) break;
      if (may_rest_more_ && ReachedPowerCap(observed_.throttle_reasons.value_or(0))) {
        throw PowerCapReached{};
      }
      if (m_.samples.rested) {
        execution_.Rest(rest_share_ * got.back() * timer_->launches_per_sample());
      }
      if (audit_after_.contains(taken_)) Audit();
    }
    return samples;
  }

  void Audit() {
    Compare(m_.verified.after, StrCat("after ", taken_, " timed samples"));
    Refill();
    const Rotation rotation = timer_->RotateOnce();
    fresh_us_.push_back(rotation.us);
    late_us_.push_back(rotation.late_us);
    Expect();
    Compare(m_.verified.after, StrCat("on fresh inputs after ", taken_, " timed samples"));
    ++m_.verified.audits;
    store_.Poison();
  }

  void CheckFreshTimes() {
    if (!execution_.MeasuresSpeed()) return;
    const double fresh = Median(fresh_us_);
    const double repeated = Median(m_.samples.us);
    const int launches = store_.copies();
    const bool cold = m_.cache == "cold";
    const double most = repeated * (cold ? kColdFreshRatio : kWarmFreshRatio) +
                        (cold ? kColdStartUs : kWarmStartUs) / launches;
    m_.samples.fresh_us = fresh;
    if (fresh > most) {
      throw Refusal{StrCat("launches on fresh inputs take ", fresh, " us, repeated ones ", repeated,
                           " us; fresh ones may take at most ", most,
                           " us: work is left out when inputs repeat")};
    }
    const double late = *std::min_element(late_us_.begin(), late_us_.end());
    const double latest = kLateUs + kLateShare * fresh * launches;
    if (late > latest) {
      throw Refusal{StrCat("the device was busy for ", late, " us after the last of ", launches,
                           " timed launches of ", fresh, " us, and at most ", latest,
                           " us are allowed: work is done outside of what is timed")};
    }
  }

  PreparedCase& prepared_;
  TensorStore& store_;
  const Execution& execution_;
  const RowOptions& options_;
  std::mt19937_64& rng_;
  KernelMeasurement& m_;
  std::unique_ptr<LaunchTimer> timer_;
  uint64_t seed_ = 0;                         // seed of the current inputs
  std::unique_ptr<ExpectedSample> expected_;  // the outputs that the current inputs must give
  struct Upcoming {
    uint64_t fill_seed;
    std::unique_ptr<ExpectedSample> expected;
  };
  std::deque<Upcoming> upcoming_;
  std::set<int> audit_after_;  // numbers of samples after which an audit takes place
  int taken_ = 0;
  double rest_share_ = 0;
  bool may_rest_more_ = false;
  std::vector<double> fresh_us_;
  std::vector<double> late_us_;
  GpuState observed_;  // the union of throttle reasons and the maximum of processes since TimeOnce
};

}  // namespace

PreparedCase::PreparedCase(std::unique_ptr<BenchCase> made, const Execution& execution)
    : bench_case(std::move(made)),
      cost(bench_case->GetCost()),
      placement(execution.Place(cost, bench_case->tensors())),
      store(bench_case->tensors(), placement.buffer_sets, execution.MakeMemory()) {}

void MeasureRow(PreparedCase& prepared, const Execution& execution, const RowOptions& options,
                std::mt19937_64& rng, KernelMeasurement& m) {
  try {
    Measurement(prepared, execution, options, rng, m).Run();
    if (!options.verify_only && FiguresOf(m).shares.limit_is_wrong) {
      m.limits.peaks = BestOf(*m.limits.peaks, *execution.Measure());
      execution.Rest(kCoolingUs);  // the matmuls have reached the power cap
    }
  } catch (const Refusal& refusal) {
    m.trouble.failure = refusal.reason;
  }
}

}  // namespace tokline::bench
