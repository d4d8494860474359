// When each kernel ran on the device, as the vendor's tracing library (CUPTI) saw it. The
// library is opened at run time, so that programs start, and build, without it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tokline {

struct TracedKernel {
  int64_t begin_ns = 0;  // on one clock
  int64_t end_ns = 0;
  std::string name;  // mangled
};

// Records every kernel of the process, from construction to the end of its life; one at a time.
// Graphs that are to be traced kernel by kernel must be made during its life. Tracing costs the
// host and the device some time: nothing that is timed for a figure belongs beside it. CUDA builds
// only.
class KernelTrace {
 public:
  // Throws RuntimeFailure that says why there can be no trace.
  KernelTrace();
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // Waits for the device; its kernels since the last Take(), in any order. Throws RuntimeFailure if
  // records were lost.
  std::vector<TracedKernel> Take();

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

}  // namespace tokline
