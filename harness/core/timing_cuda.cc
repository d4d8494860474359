#include <algorithm>
#include <cmath>

#include "harness/core/cuda_handles.h"
#include "harness/core/interrupt.h"
#include "harness/core/timing.h"

namespace tokline {
namespace {

// A graph of `count` launches that rotate over the buffer sets.
UniqueGraphExec LaunchGraph(const std::function<void(int buffer_set, const LaunchOptions&)>& launch,
                            const GraphTimingOptions& options, cudaStream_t stream, int count) {
  const auto record = [&] {
    for (int i = 0; i < count; ++i) {
      launch(i % options.buffer_sets, {.stream = stream, .dependent = options.dependent && i > 0});
    }
  };
  return CaptureGraph(stream, record, /*least_nodes=*/count);
}

}  // namespace

TimedSamples TimeInGraph(const std::function<void(int buffer_set, const LaunchOptions&)>& launch,
                         const GraphTimingOptions& options) {
  Require(options.samples >= 1 && options.buffer_sets >= 1, "samples is ", options.samples,
          ", buffer_sets is ", options.buffer_sets, "; both must be >= 1");
  const UniqueStream stream = MakeStream();
  const auto replay_us = [&](const UniqueGraphExec& graph) {
    const UniqueEvent begin = MakeTimingEvent();
    const UniqueEvent end = MakeTimingEvent();
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));
    TOKLINE_CUDA(cudaEventRecord(begin.get(), stream.get()));
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));
    TOKLINE_CUDA(cudaEventRecord(end.get(), stream.get()));
    TOKLINE_CUDA(cudaEventSynchronize(end.get()));
    return ElapsedUs(begin, end);
  };
  TimedSamples timed;
  const int rotation = options.buffer_sets;
  UniqueGraphExec graph = LaunchGraph(launch, options, stream.get(), rotation);
  double sample_us = replay_us(graph);
  constexpr double kMaxLaunches = 4096;
  const double rotations = std::ceil(options.min_sample_us / std::max(sample_us, 1e-3));
  timed.launches_per_sample =
      rotation *
      static_cast<int>(std::clamp(rotations, 1.0, std::max(1.0, kMaxLaunches / rotation)));
  if (timed.launches_per_sample != rotation) {
    graph = LaunchGraph(launch, options, stream.get(), timed.launches_per_sample);
    sample_us = replay_us(graph);
  }
  // Clocks and caches settle.
  constexpr double kWarmUpUs = 20e3;
  const int warm_up = std::clamp(static_cast<int>(kWarmUpUs / std::max(sample_us, 1.0)), 1, 20);
  for (int i = 0; i < warm_up; ++i) TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));

  std::vector<UniqueEvent> events;
  for (int i = 0; i <= options.samples; ++i) events.push_back(MakeTimingEvent());
  TOKLINE_CUDA(cudaEventRecord(events[0].get(), stream.get()));
  int queued = 0;
  while (queued < options.samples && !timed.interrupted) {
    TOKLINE_CUDA(cudaGraphLaunch(graph.get(), stream.get()));
    TOKLINE_CUDA(cudaEventRecord(events[static_cast<size_t>(++queued)].get(), stream.get()));
    timed.interrupted = InterruptRequested();
  }
  TOKLINE_CUDA(cudaStreamSynchronize(stream.get()));
  for (int i = 0; i < queued; ++i) {
    const auto at = static_cast<size_t>(i);
    timed.us.push_back(ElapsedUs(events[at], events[at + 1]) / timed.launches_per_sample);
  }
  timed.interrupted = timed.interrupted || InterruptRequested();
  return timed;
}

}  // namespace tokline
