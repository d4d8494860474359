// Formats the profile of a decode step for people to read.
#pragma once

#include <string>

#include "harness/measure/step_profiler.h"
#include "harness/measure/throughput.h"

namespace tokline {

// One line per op, sorted by time in descending order, with its phases below it, then the gaps and
// what is unexplained; each with its time, its share of the step, and its time in place if that was
// measured. `measured_ms` is the duration of the bench's step.
std::string ProfileTable(const BenchOptions& bench, const ProfiledSteps& profiled,
                         double measured_ms);

}  // namespace tokline
