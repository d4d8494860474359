// Samples of a launch's time and what is said of them.
#pragma once

#include <span>
#include <vector>

#include "tokline_rules.h"

namespace tokline {

// The middle of `values`, of which there is at least one.
double Median(std::vector<double> values);

struct SampleStats {
  double median = 0;
  double mad = 0;  // median absolute deviation from the median, unscaled
};

// Throws InvalidArgument for no samples, or one that is not a finite positive number.
SampleStats Summarize(std::span<const double> samples);

struct Interval {
  double low = 0;
  double high = 0;
};

// The narrowest pair of order statistics, equally far from both ends, between which the median of
// the distribution lies with a confidence of at least 95 %: each side is missed with at most 2.5 %,
// whatever the distribution. Fewer than kMinIntervalSamples do not suffice for that; then the
// smallest and the largest. Throws InvalidArgument for no samples.
Interval MedianInterval(std::span<const double> samples);

struct Percentiles {
  double median = 0;
  double p90 = 0;
  double p99 = 0;
};

// Nearest rank: figures that occurred. All 0 if there are none.
Percentiles PercentilesOf(std::vector<double> values);

}  // namespace tokline
