#include "harness/measure/step_partition.h"

#include <algorithm>

#include "kernels/common/error.h"

namespace tokline {

StepProfile PartitionSteps(std::string method, std::span<const WorkSpan> spans,
                           std::vector<OpTime> ops, int64_t steps, int64_t total_ns) {
  Require(steps >= 1, "steps is ", steps, "; it must be >= 1");
  std::vector<WorkSpan> order(spans.begin(), spans.end());
  std::ranges::stable_sort(order, {}, &WorkSpan::begin_ns);
  const int64_t begin_ns = order.empty() ? 0 : order.front().begin_ns;
  std::vector<int64_t> own_ns(ops.size());
  int64_t busy_ns = 0, device_gap_ns = 0;
  int64_t covered = begin_ns;  // time before this is already attributed
  int64_t last_step = -1;
  for (const WorkSpan& span : order) {
    Require(span.begin_ns <= span.end_ns, "a span begins at ", span.begin_ns, " ns and ends at ",
            span.end_ns, " ns");
    Require(span.op < ops.size(), "a span is of op ", span.op, " of ", ops.size());
    if (span.begin_ns > covered) {
      if (span.step == last_step) device_gap_ns += span.begin_ns - covered;
      covered = span.begin_ns;
    }
    if (span.end_ns > covered) {  // otherwise earlier spans cover all of it
      own_ns[span.op] += span.end_ns - covered;
      busy_ns += span.end_ns - covered;
      covered = span.end_ns;
    }
    last_step = span.step;
  }
  Require(covered - begin_ns <= total_ns, "the spans reach over ", covered - begin_ns,
          " ns; the total is ", total_ns);

  const auto mean_us = [&](int64_t ns) {
    return 1e-3 * static_cast<double>(ns) / static_cast<double>(steps);
  };
  for (size_t i = 0; i < ops.size(); ++i) ops[i].us = mean_us(own_ns[i]);
  return {.method = std::move(method),
          .steps = steps,
          .step_us = mean_us(total_ns),
          .ops = std::move(ops),
          .device_gap_us = mean_us(device_gap_ns),
          .host_gap_us = mean_us(total_ns - busy_ns - device_gap_ns)};
}

Attribution AttributeByPosition(std::vector<TracedKernel> kernels,
                                std::span<const size_t> op_of_place, int64_t steps) {
  const auto places = static_cast<int64_t>(op_of_place.size());
  const auto found = static_cast<int64_t>(kernels.size());
  if (places == 0 || found != places * steps) {
    return {.mismatch = StrCat("the trace has ", found, " kernels, ", steps, " steps of ", places,
                               " kernels have ", places * steps)};
  }
  std::ranges::stable_sort(kernels, {}, &TracedKernel::begin_ns);
  Attribution result;
  for (int64_t i = 0; i < found; ++i) {
    const TracedKernel& kernel = kernels[static_cast<size_t>(i)];
    const auto place = static_cast<size_t>(i % places);
    if (kernel.name != kernels[place].name) {
      return {.mismatch = StrCat("kernel ", place, " of a step is ", kernels[place].name,
                                 " in the first and ", kernel.name, " in step ", i / places)};
    }
    result.spans.push_back({.begin_ns = kernel.begin_ns,
                            .end_ns = kernel.end_ns,
                            .step = i / places,
                            .op = op_of_place[place]});
  }
  return result;
}

}  // namespace tokline
