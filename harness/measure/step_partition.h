// Attributes the time of decode steps: turns intervals of work, and the op that each belongs to,
// into a StepProfile.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/measure/kernel_trace.h"
#include "harness/measure/step_profile.h"

namespace tokline {

// One kernel, or one op where kernels are not told apart. All spans use the same clock.
struct WorkSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t step = 0;
  size_t op = 0;  // index of the op
};

// Splits `total_ns`, in which `steps` steps ran, into the times of the ops and the gaps. Spans may
// be in any order, overlap and be nested: at each instant the time belongs to the running span that
// began first. The device gap is the time between the first and the last span of a step in which no
// span runs; everything else is host gap. The parts therefore add up to the total exactly. `method`
// and all fields of `ops` except the time are copied to the result. Throws InvalidArgument for less
// than one step, for a span that ends before it begins or has no op, and for a total that is
// shorter than the time from the first begin to the last end.
StepProfile PartitionSteps(std::string method, std::span<const WorkSpan> spans,
                           std::vector<OpTime> ops, int64_t steps, int64_t total_ns);

struct Attribution {
  std::vector<WorkSpan> spans;
  // why the kernels do not match the steps, in which case there are no spans; "" if they match
  std::string mismatch;
};

// Sorts the kernels by their begin and gives each the op at its position within a step. Sets
// `mismatch` instead of guessing unless there are exactly `steps` times the kernels of a step and
// the kernel at each position has the same name in every step.
Attribution AttributeByPosition(std::vector<TracedKernel> kernels,
                                std::span<const size_t> op_of_place, int64_t steps);

}  // namespace tokline
