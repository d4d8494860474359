#include "harness/measure/launch_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "harness/platform/interrupt.h"
#include "kernels/common/error.h"
#include "tokline_rules.h"

namespace tokline {
namespace {

using SteadyClock = std::chrono::steady_clock;  // a test's clock must not time launches

double MicrosecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count();
}

class HostTimer : public LaunchTimer {
 public:
  HostTimer(std::function<void(int)> run, const HostTimerOptions& options)
      : run_(std::move(run)), options_(options), calls_(options.buffer_sets) {
    Require(options.buffer_sets >= 1 && options.slowdown_percent >= 0, "buffer_sets is ",
            options.buffer_sets, ", slowdown_percent is ", options.slowdown_percent,
            "; the first must be >= 1, the second >= 0");
    constexpr double kMinSampleUs = 200;  // thousands of times the clock's resolution
    constexpr int kMaxCalls = 1 << 16;
    while (UsOfCalls(calls_) < kMinSampleUs && calls_ < kMaxCalls) calls_ *= 2;
  }

  int launches_per_sample() const override { return calls_; }

  std::vector<double> Sample(int count, const std::function<void()>& meanwhile) override {
    std::vector<double> samples;
    while (static_cast<int>(samples.size()) < count && !InterruptRequested()) {
      samples.push_back(UsOfCalls(calls_) / calls_);
    }
    if (meanwhile) meanwhile();
    return samples;
  }

  Rotation RotateOnce() override {
    return {.us = UsOfCalls(options_.buffer_sets) / options_.buffer_sets, .late_us = 0};
  }

 private:
  double UsOfCalls(int calls) const {
    const SteadyClock::time_point begin = SteadyClock::now();
    for (int i = 0; i < calls; ++i) run_(i % options_.buffer_sets);
    const double slowed_us = MicrosecondsSince(begin) * (1 + options_.slowdown_percent / 100);
    while (options_.slowdown_percent > 0 && MicrosecondsSince(begin) < slowed_us) continue;
    return MicrosecondsSince(begin);
  }

  std::function<void(int)> run_;
  HostTimerOptions options_;
  int calls_;
};

}  // namespace

int MoreLaunches(int launches, double percent) {
  const double wanted = launches * percent / 100;
  const auto more = static_cast<int>(std::lround(wanted));
  return std::abs(more - wanted) <= kRepeatedLaunchesWithin * wanted ? more : 0;
}

int RotationsOf(double least_us, double rotation_us, int most) {
  constexpr double kResolutionUs = 1e-3;  // no rotation takes less
  const double rotations = std::ceil(least_us / std::max(rotation_us, kResolutionUs));
  return static_cast<int>(std::clamp(rotations, 1.0, std::max(1.0, static_cast<double>(most))));
}

std::unique_ptr<LaunchTimer> MakeHostTimer(std::function<void(int buffer_set)> run,
                                           const HostTimerOptions& options) {
  return std::make_unique<HostTimer>(std::move(run), options);
}

}  // namespace tokline
