// Where the time of a decoder's steps goes: op by op, and between them.
#pragma once

#include <optional>
#include <string>

#include "harness/engine/decoder.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/throughput.h"

namespace tokline {

struct ProfiledSteps {
  StepProfile profile;
  std::string note;  // why the method is "events" and not "cupti", or ""
};

// Runs a repeat of the bench and profiles up to 128 decode steps in its middle, so that their
// contexts are in the mean those of the bench. The method is
//   "clock"   on the CPU: the steady clock around each op; all else is host gap.
//   "cupti"   on CUDA: the device's trace of the steps as they always run. Kernels are told apart
//   by
//             their place: a capture of the step says how many each op launches.
//   "events"  where there is no trace, or it is not that of the steps: plain launches with events
//             around each op, which therefore do not overlap, of up to 16 steps.
// Makes graphs of its own, so that tracing them has no part in any other figure. Nothing if it was
// interrupted. Needs a decoder without sequences; afterwards its graphs may be gone.
std::optional<ProfiledSteps> ProfileSteps(Decoder& decoder, const BenchOptions& options);

}  // namespace tokline
