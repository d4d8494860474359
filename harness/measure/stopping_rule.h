// When a row has samples enough: a pure rule over a source of samples.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/measure/timing.h"

namespace tokline {

struct StoppingRule {
  int samples = 0;                // exactly so many; 0: as many as the rest says
  int least = kMinSamples;        // before anything is decided
  double precision = kPrecision;  // relative half-width of the median's interval that suffices
  double seconds = 0.5;           // of samples, after which there are no more
};

// Gives so many more samples of one launch in microseconds; fewer where it was interrupted.
using SampleSource = std::function<std::vector<double>(int count)>;

struct TakenSamples {
  std::vector<double> us{};
  std::string stopped{};  // "precise" or "time"; "" for a fixed number, or interrupted
  bool interrupted = false;
};

// Half the width of the median's 95 % confidence interval over the median.
double RelativePrecision(const std::vector<double>& samples);

// Takes samples in blocks until the rule is satisfied.
TakenSamples TakeSamples(const StoppingRule& rule, int launches_per_sample,
                         const SampleSource& source);

}  // namespace tokline
