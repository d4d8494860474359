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
UniqueEvent MakeTimingEvent();

// An executable graph of what `record` queues on the stream. If `record` throws, the capture is
// ended and its exception passed on. Throws RuntimeFailure if fewer than `least_nodes` came of it:
// the rest of the work went to another stream.
UniqueGraphExec CaptureGraph(cudaStream_t stream, const std::function<void()>& record,
                             int64_t least_nodes = 1);

// Microseconds from one event to a later one, both complete.
double ElapsedUs(const UniqueEvent& begin, const UniqueEvent& end);

}  // namespace tokline
