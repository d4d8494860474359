// Decides when a row has enough samples: a pure rule applied to a source of samples.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/measure/timing.h"

namespace tokline {

struct StoppingRule {
  int samples = 0;                // exactly this many; 0: as the other fields decide
  int least = kMinSamples;        // minimum before the rule may stop
  double precision = kPrecision;  // relative half-width of the median's interval that suffices
  double seconds = 0.5;           // total time of the samples after which none are added
};

// Returns `count` more samples of one launch in microseconds, or fewer if it was interrupted.
using SampleSource = std::function<std::vector<double>(int count)>;

struct TakenSamples {
  std::vector<double> us{};
  std::string stopped{};  // "precise" or "time"; "" for a fixed number of samples or if interrupted
  bool interrupted = false;
};

// Half the width of the median's 95 % confidence interval, divided by the median.
double RelativePrecision(const std::vector<double>& samples);

// Takes samples in blocks until the rule is satisfied.
TakenSamples TakeSamples(const StoppingRule& rule, int launches_per_sample,
                         const SampleSource& source);

}  // namespace tokline
