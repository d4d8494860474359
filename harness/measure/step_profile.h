// Where the time of a mean decode step went: to which op's kernels, and to gaps that no kernel
// explains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokline {

struct OpTime {
  std::string op;        // of the forward pass, "down"
  std::string kernel;    // that did it, "linear"
  int64_t launches = 0;  // of the op in a step, of whatever number of kernels each
  double us = 0;         // that no earlier kernel explains: kernels overlap under dependent launch
};

// The times of all ops and both gaps add up to step_us.
struct StepProfile {
  std::string method;  // "cupti", "events" or "clock"
  int64_t steps = 0;   // that the means are of
  double step_us = 0;
  std::vector<OpTime> ops;
  double device_gap_us = 0;  // the device idle within a step
  double host_gap_us = 0;    // the device idle between steps: launch, host, synchronisation
};

}  // namespace tokline
