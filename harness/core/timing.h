// Samples of a launch's time and what is said of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/common/launch_options.h"

namespace tokline {

// A published row has at least this many samples.
inline constexpr int kMinSamples = 15;

// Cold means that between two uses of a buffer at least this many times the L2 was touched.
inline constexpr double kColdL2Multiple = 5;

// The middle of `values`, of which there is at least one.
double Median(std::vector<double> values);

struct SampleStats {
  double median = 0;
  double mad = 0;  // median absolute deviation from the median, unscaled
};

// Throws InvalidArgument for no samples, or one that is not a finite positive number.
SampleStats Summarize(std::span<const double> samples);

struct TimedSamples {
  std::vector<double> us{};  // of one launch, one entry a sample
  int launches_per_sample = 0;
  bool interrupted = false;  // by InterruptRequested: there may be fewer samples than asked for
};

// Times `run` on the host; a sample is as many calls as the clock needs to resolve one. Stops early
// when interrupted.
TimedSamples TimeOnHost(const std::function<void()>& run, int samples);

struct GraphTimingOptions {
  int samples = kMinSamples;
  int buffer_sets = 1;     // launch i of a graph gets i modulo this
  bool dependent = false;  // every launch but the graph's first may start before its predecessor
                           // ends
  double min_sample_us = 1000;  // a graph holds as many launches as that takes
};

// Captures launches into a CUDA graph and times its replays between events. Replays are queued back
// to back, so that neither the host nor the start of a graph is in a sample. `launch` must have
// been called once before, outside of any capture. CUDA builds only.
TimedSamples TimeInGraph(const std::function<void(int buffer_set, const LaunchOptions&)>& launch,
                         const GraphTimingOptions& options);

}  // namespace tokline
