// Statistics of timing samples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tokline_rules.h"

namespace tokline {

// Returns the middle of `values`, of which there must be at least one.
double Median(std::vector<double> values);

struct SampleStats {
  double median = 0;
  double mad = 0;  // median absolute deviation from the median, unscaled
};

// Throws InvalidArgument if there are no samples, or if one is not a finite positive number.
SampleStats Summarize(std::span<const double> samples);

struct Interval {
  double low = 0;
  double high = 0;
};

// Returns the narrowest pair of order statistics, equally far from both ends, between which the
// median of the distribution lies with a confidence of at least 95 %: each side misses it with a
// probability of at most 2.5 %, whatever the distribution. Fewer than kMinIntervalSamples samples
// do not suffice for that; then it returns the smallest and the largest. Throws InvalidArgument if
// there are no samples.
Interval MedianInterval(std::span<const double> samples);

// By nearest rank, so each percentile is a value that occurred.
struct Percentiles {
  int64_t count = 0;  // number of values
  double median = 0;
  // Empty for fewer than 10 and 100 values, because it would be the largest value.
  std::optional<double> p90{}, p99{};
};

// Returns nothing if there are no values.
std::optional<Percentiles> PercentilesOf(std::vector<double> values);

}  // namespace tokline
