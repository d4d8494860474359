// Who owns the time of decode steps: intervals of work and what each belongs to become a
// StepProfile.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/measure/kernel_trace.h"
#include "harness/measure/step_profile.h"

namespace tokline {

// A kernel, or an op where kernels are not told apart, on any one clock.
struct WorkSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t step = 0;
  size_t op = 0;  // index
};

// Splits `total_ns`, in which `steps` steps ran, into the ops' own times and gaps. Spans, in any
// order, may overlap and lie within one another: at each instant the one that began first among
// those that run owns the time. The device gap is the time of no span between the first and the
// last of a step; all else is host gap. So the parts add up to the total, exactly. Of `ops` all but
// the time is passed on, as is `method`. Throws InvalidArgument for less than one step, a span that
// ends before it begins or has no op, and a total shorter than the time from the first begin to the
// last end.
StepProfile PartitionSteps(std::string method, std::span<const WorkSpan> spans,
                           std::vector<OpTime> ops, int64_t steps, int64_t total_ns);

struct Attribution {
  std::vector<WorkSpan> spans;
  std::string mismatch;  // why the kernels are not those of the steps, or ""; then no spans
};

// Gives each kernel, by its place in the order of begins, the op of that place in a step. Says so,
// and guesses nothing, unless there are exactly `steps` times the kernels of a step, and the kernel
// at a place has the same name in every step.
Attribution AttributeByPosition(std::vector<TracedKernel> kernels,
                                std::span<const size_t> op_of_place, int64_t steps);

}  // namespace tokline
