// Owned CUDA streams, events and graphs. CUDA builds only.
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

// The one stream that a process launches kernels on; it lives as long as the process. Once a
// process has launched about ten kernels on each of two streams, every kernel of every graph starts
// later for the rest of its life, whatever became of the streams: on most H200s by 0.18 us after
// its predecessor, and by 0.04 us and more as a dependent launch. Large memsets are kernels too;
// copies and replays of graphs on other streams do not matter. (docs/measuring.md has the figures.)
// It does not wait for the default stream.
cudaStream_t WorkStream();
UniqueEvent MakeTimingEvent();

// An executable graph of what `record` queues on the stream. If `record` throws, the capture is
// ended and its exception passed on. Throws RuntimeFailure if fewer than `least_nodes` came of it:
// the rest of the work went to another stream.
UniqueGraphExec CaptureGraph(cudaStream_t stream, const std::function<void()>& record,
                             int64_t least_nodes = 1);

// Microseconds from one event to a later one, both complete.
double ElapsedUs(const UniqueEvent& begin, const UniqueEvent& end);

}  // namespace tokline
