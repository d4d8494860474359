// Profiles a decoder's steps: the time of each op, of the gaps, and what these leave unexplained.
#pragma once

#include <optional>
#include <string>

#include "harness/engine/decoder.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/throughput.h"

namespace tokline {

struct ProfiledSteps {
  StepProfile profile;
  std::string note;  // why the method is "events" instead of "cupti", or ""
};

// Profiles up to 128 decode steps in the middle of a repeat of the bench, so that their mean
// context is that of the bench. The method is
// - "clock" on the CPU: the steady clock around each op; the time between ops is host gap.
// - "cupti" on CUDA: the device's trace of the steps as they always run. Kernels are told apart by
//   their position: a capture of the step says how many kernels each op launches. The step and the
//   host gap, which the trace would lengthen, are measured without it in repeats of their own.
// - "events" on CUDA when there is no trace or it does not match the steps: up to 16 steps of plain
//   launches with events around each op, so that ops do not overlap.
// Creates its own graphs, so that tracing them cannot affect any other figure. Returns nothing if
// it was interrupted. The decoder must have no sequences; afterwards its graphs may be gone.
std::optional<ProfiledSteps> ProfileSteps(Decoder& decoder, const BenchOptions& options);

}  // namespace tokline
