#include "harness/measure/timing.h"

#include <algorithm>
#include <cmath>

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

Interval MedianInterval(std::span<const double> samples) {
  Require(!samples.empty(), "there are no samples");
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  // The median lies below the sample of rank r (from 0) if at most r of n fair coins show heads.
  constexpr double kMissedOnASide = 0.025;
  const auto count = static_cast<double>(sorted.size());
  const auto probability = [count](double heads) {
    return std::exp(std::lgamma(count + 1) - std::lgamma(heads + 1) -
                    std::lgamma(count - heads + 1) - count * std::log(2.0));
  };
  size_t rank = 0;
  double missed = probability(0);
  while (missed + probability(static_cast<double>(rank) + 1) <= kMissedOnASide) {
    missed += probability(static_cast<double>(++rank));
  }
  return {.low = sorted[rank], .high = sorted[sorted.size() - 1 - rank]};
}

std::optional<Percentiles> PercentilesOf(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const size_t count = values.size();
  // Whole numbers, since 0.9 * 10 must not exceed 9.
  const auto index = [count](size_t percent) { return (percent * count + 99) / 100 - 1; };
  const auto below_the_largest = [&](size_t percent) {
    return index(percent) + 1 < count ? std::optional(values[index(percent)]) : std::nullopt;
  };
  return Percentiles{.count = static_cast<int64_t>(count),
                     .median = values[index(50)],
                     .p90 = below_the_largest(90),
                     .p99 = below_the_largest(99)};
}

}  // namespace tokline
