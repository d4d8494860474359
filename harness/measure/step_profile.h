// Where the time of an average decode step went: to the kernels of each op, to gaps without a
// kernel, and to neither as far as anything measured shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/timing.h"

namespace tokline {

// The same as InPlaceTime while a trace runs, as it does for a profile, and how much of that the
// stamps add (StampEffects).
struct TracedTime {
  double us = 0;
  double stamps_us = 0;
};

// The time of all launches of an op in a step, as the step waits for them.
struct InPlaceTime {
  double us = 0;
  Interval ci95_us;  // of the median
  std::optional<TracedTime> traced = {};
};

// A part of an op that one kernel does for several.
struct PhaseTime {
  std::string phase;  // the op of a chain of kernels that does the same, for example "down"
  double us = 0;
};

struct OpTime {
  std::string op;        // op of the forward pass, for example "down"
  std::string kernel;    // kernel that computed it, for example "linear"
  int64_t launches = 0;  // launches of the op per step, however many kernels each one has
  // time not covered by an earlier kernel: kernels overlap under dependent launch
  double us = 0;
  std::vector<PhaseTime> phases = {};        // of decode_step, which add up to us; else none
  std::optional<InPlaceTime> in_place = {};  // measured without the profile, see ops_in_place.h
};

// Ops, gaps and the step are measured separately. What is unexplained makes them add up.
struct StepProfile {
  std::string method;  // "cupti", "events" or "clock"
  int64_t steps = 0;   // number of steps that the means are taken over
  double step_us = 0;  // mean step by the host's clock; "cupti": without the trace
  std::vector<OpTime> ops;
  double device_gap_us = 0;  // time within a step in which the device is idle
  // time between steps in which the device is idle: launch, host work, synchronisation. "cupti":
  // without the trace
  double host_gap_us = 0;
  // "cupti": what the trace has added to ops and gaps, taken back: 0 or less, but for noise
  std::optional<double> tracing_us = {};
  // step_us minus all of the above; negative if profiling made them longer
  double unexplained_us = 0;
};

}  // namespace tokline
