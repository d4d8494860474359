// The profile of a decode step for people.
#pragma once

#include <cstdint>
#include <string>

#include "harness/measure/step_profiler.h"

namespace tokline {

// A line an op, the largest first, then the gaps; times and shares of the step. `measured_ms` is
// the step without a profiler.
std::string ProfileTable(int64_t batch, const ProfiledSteps& profiled, double measured_ms);

}  // namespace tokline
