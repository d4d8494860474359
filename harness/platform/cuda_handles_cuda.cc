#include "harness/platform/cuda_handles.h"

#include <map>
#include <mutex>

namespace tokline {

UniqueStream MakeStream() {
  cudaStream_t stream = nullptr;
  TOKLINE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return UniqueStream(stream);
}

cudaStream_t WorkStream() {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  int device = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[device];
  if (stream == nullptr) stream = MakeStream().release();
  return stream;
}

UniqueEvent MakeTimingEvent() {
  cudaEvent_t event = nullptr;
  TOKLINE_CUDA(cudaEventCreate(&event));
  return UniqueEvent(event);
}

UniqueGraphExec CaptureGraph(cudaStream_t stream, const std::function<void()>& record,
                             int64_t least_nodes) {
  TOKLINE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t captured = nullptr;
  try {
    record();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    const UniqueGraph discarded(captured);
    cudaGetLastError();  // clears the error of the aborted capture; `throw` reports the cause
    throw;
  }
  TOKLINE_CUDA(cudaStreamEndCapture(stream, &captured));
  const UniqueGraph graph(captured);
  size_t nodes = 0;
  TOKLINE_CUDA(cudaGraphGetNodes(graph.get(), nullptr, &nodes));
  if (static_cast<int64_t>(nodes) < least_nodes) {
    throw RuntimeFailure(StrCat("the captured graph has ", nodes, " nodes, but at least ",
                                least_nodes, " were launched: work went to another stream"));
  }
  cudaGraphExec_t exec = nullptr;
  TOKLINE_CUDA(cudaGraphInstantiate(&exec, graph.get(), 0));
  return UniqueGraphExec(exec);
}

double ElapsedUs(const UniqueEvent& begin, const UniqueEvent& end) {
  float ms = 0;
  TOKLINE_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return 1e3 * static_cast<double>(ms);
}

}  // namespace tokline
