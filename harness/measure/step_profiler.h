// Profiles a decoder's steps: the time of each op, of the gaps, and the unexplained rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/throughput.h"

namespace tokline {

struct ProfiledSteps {
  StepProfile profile;
  std::string note;  // why the method is "events" instead of "cupti", or ""
};

// The times that a trace would lengthen, for the same steps as the profile's.
struct UntracedSteps {
  double step_us = 0;  // mean by the host's clock, without stamps
  // of the device's clock, at both ends of each step; one list per run of the steps
  std::vector<std::vector<int64_t>> stamps_ns;
};

// Times the steps without a trace, on a CUDA device: three runs as they are and three with stamps
// of the device's clock, in turn. Decoders with the same options differ by up to 2 % of a step, so
// call this with the decoder whose figures the profile is to explain, after its run. Returns
// nothing if it was interrupted. The decoder must have no sequences; afterwards its graphs are
// gone.
std::optional<UntracedSteps> TimeUntraced(Decoder& decoder, const BenchOptions& options);

// Profiles up to 128 decode steps in the middle of a repeat of the bench, so that their mean
// context is that of the bench. The method is
// - "clock" on the CPU: the steady clock around each op; the time between ops is host gap.
// - "cupti" on CUDA: the device's trace of the steps as they always run. Kernels are identified by
//   their position: a capture of the step says how many kernels each op launches. The step and the
//   host gap, which the trace would lengthen, are those of `untraced`.
// - "events" on CUDA when there is no `untraced`, or no trace, or it does not match the steps:
//   plain launches of up to 16 steps with events around each op, so that ops do not overlap.
// If the steps run as one kernel, the step in the middle then runs a few more times with stamps of
// decode_step, which give the shares of the op's phases in its time.
// Creates its own graphs, so that tracing them cannot affect any other figure. Returns nothing if
// it was interrupted. The decoder must have no sequences; afterwards its graphs may be gone.
std::optional<ProfiledSteps> ProfileSteps(Decoder& decoder, const BenchOptions& options,
                                          const std::optional<UntracedSteps>& untraced);

}  // namespace tokline
