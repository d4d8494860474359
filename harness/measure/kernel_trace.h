// When each kernel ran on the device, as traced by NVIDIA's CUPTI. The library is opened at run
// time, so that programs build and start without it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tokline {

struct TracedKernel {
  int64_t begin_ns = 0;  // both on the same clock
  int64_t end_ns = 0;
  std::string name;  // mangled
};

// Records every kernel of the process during its lifetime; only one may exist at a time. Graphs
// that are to be traced kernel by kernel must be created during its lifetime. Tracing slows down
// the host and the device, so nothing that is timed for a figure may run meanwhile. CUDA builds
// only.
class KernelTrace {
 public:
  // Throws RuntimeFailure with the reason if tracing is not possible.
  KernelTrace();
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // Waits for the device and returns the kernels since the last Take(), in any order. Throws
  // RuntimeFailure if records were lost.
  std::vector<TracedKernel> Take();

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

}  // namespace tokline
