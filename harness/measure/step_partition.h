// Attributes the time of decode steps: turns intervals of work, and the op that each belongs to,
// into a StepProfile. Pure arithmetic over traces and stamps, without a device.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/measure/kernel_trace.h"
#include "harness/measure/step_profile.h"

namespace tokline {

// One kernel, or one op if its kernels are not distinguished. All spans use the same clock.
struct WorkSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t step = 0;
  // place in the order of all work of all steps; work whose span is missing has a number too
  int64_t number = 0;
  size_t op = 0;  // index of the op
};

// What stamps of the device's clock show about steps: the mean time from the end of a step to the
// beginning of the next, and from the beginning to the end of a step.
struct StampedSteps {
  double gap_us = 0;
  double busy_us = 0;
};

// The same steps with and without the trace that made the spans.
struct TraceCost {
  StampedSteps untraced = {}, traced = {};
};

// Splits the mean of `steps` steps, which took `step_us` by another clock, into the times of the
// ops and the gaps. Spans may be in any order, overlap and be nested: at each instant the time
// belongs to the running span that began first. A gap is the time in which no span runs between two
// spans of successive numbers: the device gap if they are of one step, and the host gap, as the
// mean over such pairs, if they are of two. Time next to work whose span is missing is no gap.
// The rest of `step_us`, which may be negative, is unexplained. With `cost`, the spans come from a
// trace and `step_us` does not: the host gap is then that without the trace, and the time that the
// trace adds to a step is a separate part. `method` and all fields of `ops` except the time are
// copied to the result. Throws InvalidArgument for less than one step, for a span that ends before
// it begins or has no op, and for a negative gap.
StepProfile PartitionSteps(std::string method, std::span<const WorkSpan> spans,
                           std::vector<OpTime> ops, int64_t steps, double step_us,
                           const std::optional<TraceCost>& cost = {});

// Reads stamps that the device took of its clock at the beginning and at the end of each step; the
// gap of a single step is 0. Throws RuntimeFailure unless there are exactly two stamps per step,
// none earlier than its predecessor.
StampedSteps ReadStamps(std::span<const int64_t> stamps_ns, int64_t steps);

// Stands for the op of a kernel that no op launched.
inline constexpr size_t kNoOp = std::numeric_limits<size_t>::max();

struct Attribution {
  std::vector<WorkSpan> spans;
  // why the kernels do not match the steps, in which case there are no spans; "" if they match
  std::string mismatch;
};

// Sorts the kernels by their start times, numbers them, and gives each the op at its position
// within a step; kernels of kNoOp get a number but no span. Sets `mismatch` instead of guessing
// unless there are exactly `steps` times the kernels of a step and the kernel at each position has
// the same name in every step, or a name that contains the name of the op's kernel: chunk_decode
// changes its grid, and with it its kernel, as contexts grow.
Attribution AttributeByPosition(std::vector<TracedKernel> kernels,
                                std::span<const size_t> op_of_place, std::span<const OpTime> ops,
                                int64_t steps);

}  // namespace tokline
