// Where the time of an average decode step went: to the kernels of each op, and to gaps without a
// kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokline {

struct OpTime {
  std::string op;        // op of the forward pass, for example "down"
  std::string kernel;    // kernel that computed it, for example "linear"
  int64_t launches = 0;  // launches of the op per step, however many kernels each one has
  // time not covered by an earlier kernel: kernels overlap under dependent launch
  double us = 0;
};

// The times of all ops and the two gaps add up to step_us.
struct StepProfile {
  std::string method;  // "cupti", "events" or "clock"
  int64_t steps = 0;   // number of steps that the means are taken over
  double step_us = 0;
  std::vector<OpTime> ops;
  double device_gap_us = 0;  // time within a step in which the device is idle
  // time between steps in which the device is idle: launch, host work, synchronisation
  double host_gap_us = 0;
};

}  // namespace tokline
