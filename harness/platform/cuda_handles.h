// Owning handles for CUDA streams, events and graphs. CUDA builds only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/device/cuda_check.h"

namespace tokline {

struct StreamDeleter {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
struct EventDeleter {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
struct GraphDeleter {
  void operator()(cudaGraph_t graph) const noexcept { cudaGraphDestroy(graph); }
};
struct GraphExecDeleter {
  void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
};

using UniqueStream = std::unique_ptr<CUstream_st, StreamDeleter>;
using UniqueEvent = std::unique_ptr<CUevent_st, EventDeleter>;
using UniqueGraph = std::unique_ptr<CUgraph_st, GraphDeleter>;
using UniqueGraphExec = std::unique_ptr<CUgraphExec_st, GraphExecDeleter>;

UniqueStream MakeStream();

// The one stream on which a process launches kernels on the current device; it lives as long as the
// process and does not wait for the default stream. There is only one because of a lasting cost:
// once a process has launched about ten kernels on each of two streams, every kernel of every graph
// starts later for the rest of the process's life, even if the streams are destroyed. On most H200s
// a kernel then starts 0.18 us later after its predecessor, and a dependent launch starts 0.04 us
// or more later. Large memsets count as kernels; copies and graph replays on other streams do not
// matter.
// (docs/measuring.md has the figures.)
cudaStream_t WorkStream();
UniqueEvent MakeTimingEvent();

// Captures what `record` queues on the stream and returns it as an executable graph. If `record`
// throws, the capture is ended and the exception is passed on. Throws RuntimeFailure if the graph
// has fewer than `least_nodes` nodes, because then some of the work went to another stream.
UniqueGraphExec CaptureGraph(cudaStream_t stream, const std::function<void()>& record,
                             int64_t least_nodes = 1);

// Microseconds from `begin` to `end`. Both events must have completed.
double ElapsedUs(const UniqueEvent& begin, const UniqueEvent& end);

}  // namespace tokline
