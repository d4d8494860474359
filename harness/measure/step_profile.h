// Where the time of an average decode step went: to the kernels of each op, to gaps without a
// kernel, and an unexplained rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/timing.h"

namespace tokline {

// The same as InPlaceTime, but measured while a trace runs, as during a profile, and the part of it
// that the stamps add (StampEffects).
struct TracedTime {
  double us = 0;
  double stamps_us = 0;
};

// The time for which a step waits for all launches of an op.
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
  std::vector<PhaseTime> phases = {};        // of decode_step, which add up to us; empty for other
                                             // ops
  std::optional<InPlaceTime> in_place = {};  // measured without the profile, see ops_in_place.h
};

// Ops, gaps and the step are measured separately. The unexplained time is the difference.
struct StepProfile {
  std::string method;  // "cupti", "events" or "clock"
  int64_t steps = 0;   // number of steps that the means are taken over
  double step_us = 0;  // mean step by the host's clock; "cupti": without the trace
  std::vector<OpTime> ops;
  double device_gap_us = 0;  // time within a step in which the device is idle
  // time between steps in which the device is idle: launch, host work, synchronisation. "cupti":
  // without the trace
  double host_gap_us = 0;
  // "cupti": subtracts the time that the trace has added to ops and gaps: 0 or less, apart from
  // noise
  std::optional<double> tracing_us = {};
  // step_us minus all of the above; negative if profiling made them longer
  double unexplained_us = 0;
};

}  // namespace tokline
