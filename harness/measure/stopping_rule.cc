#include "harness/measure/stopping_rule.h"

#include <algorithm>
#include <numeric>

#include "kernels/common/error.h"

namespace tokline {

double RelativePrecision(const std::vector<double>& samples) {
  const Interval interval = MedianInterval(samples);
  return (interval.high - interval.low) / 2 / Median(samples);
}

TakenSamples TakeSamples(const StoppingRule& rule, int launches_per_sample,
                         const SampleSource& source) {
  Require(rule.samples >= 0 && rule.least >= 1 && rule.precision > 0 && rule.seconds >= 0,
          "samples is ", rule.samples, ", least is ", rule.least, ", precision is ", rule.precision,
          ", seconds is ", rule.seconds, "; a row needs samples, and a rule that ends");
  TakenSamples taken;
  // Each block grows the number of samples by a quarter. The interval is then checked often enough,
  // and the source, which queues a block at once, does not have to pause after every few samples.
  constexpr int kMinBlock = 5;
  int wanted = rule.samples > 0 ? rule.samples : rule.least;
  while (true) {
    const std::vector<double> block = source(wanted);
    if (!block.empty()) Summarize(block);  // throws unless every sample is a valid time
    taken.us.insert(taken.us.end(), block.begin(), block.end());
    if (static_cast<int>(block.size()) < wanted) {
      taken.interrupted = true;
      return taken;
    }
    if (rule.samples > 0) return taken;
    if (RelativePrecision(taken.us) <= rule.precision) {
      taken.stopped = "precise";
      return taken;
    }
    const double launch_us = std::accumulate(taken.us.begin(), taken.us.end(), 0.0);
    const double left_us = 1e6 * rule.seconds - launch_us * launches_per_sample;
    if (left_us <= 0) {
      taken.stopped = "time";
      return taken;
    }
    const double count = static_cast<double>(taken.us.size());
    const double affordable = std::max(1.0, left_us / (launch_us * launches_per_sample / count));
    wanted = std::max(kMinBlock, static_cast<int>(taken.us.size()) / 4);
    if (affordable < wanted) wanted = static_cast<int>(affordable);
  }
}

}  // namespace tokline
