#include "harness/core/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "harness/core/interrupt.h"
#include "kernels/common/error.h"

namespace tokline {

double Median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  const double lower =
      *std::max_element(values.begin(), values.begin() + static_cast<int64_t>(middle));
  return (lower + upper) / 2;
}

SampleStats Summarize(std::span<const double> samples) {
  Require(!samples.empty(), "there are no samples");
  for (size_t i = 0; i < samples.size(); ++i) {
    Require(std::isfinite(samples[i]) && samples[i] > 0, "sample ", i, " is ", samples[i],
            "; it must be finite and > 0");
  }
  const double median = Median({samples.begin(), samples.end()});
  std::vector<double> deviations;
  for (const double sample : samples) deviations.push_back(std::abs(sample - median));
  return {.median = median, .mad = Median(std::move(deviations))};
}

TimedSamples TimeOnHost(const std::function<void()>& run, int samples) {
  using Clock = std::chrono::steady_clock;
  const auto us_of_calls = [&run](int calls) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) run();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  constexpr double kLeastSampleUs = 200;  // thousands of times the clock's own grain
  constexpr int kMostCalls = 1 << 16;
  TimedSamples timed{.launches_per_sample = 1};
  while (us_of_calls(timed.launches_per_sample) < kLeastSampleUs &&
         timed.launches_per_sample < kMostCalls) {
    timed.launches_per_sample *= 2;
  }
  while (static_cast<int>(timed.us.size()) < samples && !timed.interrupted) {
    timed.us.push_back(us_of_calls(timed.launches_per_sample) / timed.launches_per_sample);
    timed.interrupted = InterruptRequested();
  }
  return timed;
}

}  // namespace tokline
