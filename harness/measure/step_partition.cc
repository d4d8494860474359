// Sweeps over sorted intervals and gives each instant to the kernel that began first.
#include "harness/measure/step_partition.h"

#include <algorithm>

#include "kernels/common/error.h"

namespace tokline {

StepProfile PartitionSteps(std::string method, std::span<const WorkSpan> spans,
                           std::vector<OpTime> ops, int64_t steps, double step_us,
                           const std::optional<TraceCost>& cost) {
  Require(steps >= 1, "steps is ", steps, "; it must be >= 1");
  Require(!cost || cost->untraced.gap_us >= 0, "the host gap is ", cost ? cost->untraced.gap_us : 0,
          " us; it must be >= 0");
  std::vector<WorkSpan> order(spans.begin(), spans.end());
  std::ranges::stable_sort(order, {}, &WorkSpan::begin_ns);
  std::vector<int64_t> own_ns(ops.size());
  int64_t device_gap_ns = 0, host_gap_ns = 0, host_gaps = 0;
  int64_t covered = 0;  // time before this is already attributed
  const WorkSpan* last = nullptr;
  for (const WorkSpan& span : order) {
    Require(span.begin_ns <= span.end_ns, "a span begins at ", span.begin_ns, " ns and ends at ",
            span.end_ns, " ns");
    Require(span.op < ops.size(), "a span is of op ", span.op, " of ", ops.size());
    const int64_t begin = last == nullptr ? span.begin_ns : std::max(covered, span.begin_ns);
    if (last != nullptr && span.number == last->number + 1) {
      const bool within = span.step == last->step;
      (within ? device_gap_ns : host_gap_ns) += begin - covered;
      host_gaps += !within;
    }
    own_ns[span.op] += std::max<int64_t>(span.end_ns - begin, 0);  // 0: earlier spans cover it
    covered = std::max(begin, span.end_ns);
    last = &span;
  }

  const auto mean_us = [](int64_t ns, int64_t count) {
    return 1e-3 * static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(count, 1));
  };
  StepProfile profile{.method = std::move(method),
                      .steps = steps,
                      .step_us = step_us,
                      .ops = std::move(ops),
                      .device_gap_us = mean_us(device_gap_ns, steps),
                      .host_gap_us = mean_us(host_gap_ns, host_gaps)};
  if (cost) {
    profile.host_gap_us = cost->untraced.gap_us;
    profile.tracing_us = cost->untraced.busy_us - cost->traced.busy_us;
  }
  profile.unexplained_us =
      step_us - profile.device_gap_us - profile.host_gap_us - profile.tracing_us.value_or(0);
  for (size_t i = 0; i < profile.ops.size(); ++i) {
    profile.ops[i].us = mean_us(own_ns[i], steps);
    profile.unexplained_us -= profile.ops[i].us;
  }
  return profile;
}

StampedSteps ReadStamps(std::span<const int64_t> stamps_ns, int64_t steps) {
  if (std::ssize(stamps_ns) != 2 * steps || !std::ranges::is_sorted(stamps_ns)) {
    throw RuntimeFailure(StrCat("the device took ", stamps_ns.size(), " stamps of its clock at ",
                                "both ends of ", steps, " steps, or not in their order"));
  }
  int64_t gaps_ns = 0, busy_ns = 0;
  for (size_t i = 0; i < stamps_ns.size(); i += 2) {
    busy_ns += stamps_ns[i + 1] - stamps_ns[i];
    if (i > 0) gaps_ns += stamps_ns[i] - stamps_ns[i - 1];
  }
  const auto mean_us = [](int64_t ns, int64_t count) {
    return 1e-3 * static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(count, 1));
  };
  return {.gap_us = mean_us(gaps_ns, steps - 1), .busy_us = mean_us(busy_ns, steps)};
}

Attribution AttributeByPosition(std::vector<TracedKernel> kernels,
                                std::span<const size_t> op_of_place, std::span<const OpTime> ops,
                                int64_t steps) {
  const auto places = static_cast<int64_t>(op_of_place.size());
  const auto found = static_cast<int64_t>(kernels.size());
  if (places == 0 || found != places * steps) {
    return {.mismatch = StrCat("the trace has ", found, " kernels, ", steps, " steps of ", places,
                               " kernels have ", places * steps)};
  }
  std::ranges::stable_sort(kernels, {}, &TracedKernel::begin_ns);
  const auto is_of = [&](const std::string& name, size_t op) {
    return op != kNoOp && name.find(ops[op].kernel) != std::string::npos;
  };
  Attribution result;
  for (int64_t i = 0; i < found; ++i) {
    const TracedKernel& kernel = kernels[static_cast<size_t>(i)];
    const auto place = static_cast<size_t>(i % places);
    const std::string& first = kernels[place].name;
    const size_t op = op_of_place[place];
    if (kernel.name != first && !(is_of(kernel.name, op) && is_of(first, op))) {
      return {.mismatch = StrCat("kernel ", place, " of a step is ", first, " in the first and ",
                                 kernel.name, " in step ", i / places)};
    }
    if (op_of_place[place] == kNoOp) continue;
    result.spans.push_back({.begin_ns = kernel.begin_ns,
                            .end_ns = kernel.end_ns,
                            .step = i / places,
                            .number = i,
                            .op = op_of_place[place]});
  }
  return result;
}

}  // namespace tokline
