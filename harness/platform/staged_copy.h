// Small copies between pinned host memory and the device, by a kernel. Between two graphs a copy
// engine takes 5 us and more to take over and hand back; a kernel follows kernels at once.
#pragma once

#include <cstdint>
#include <string_view>

struct CUstream_st;

namespace tokline {

// Part of the kernel's name, by which a trace can tell it from the work of a step.
inline constexpr std::string_view kStagedCopyKernel = "StagedCopyKernel";

// Above this many bytes the copy engine is as fast.
inline constexpr int64_t kMaxStagedCopyBytes = int64_t{256} << 10;

// Enqueues the copy of at most kMaxStagedCopyBytes. One side is pinned host memory. Throws
// InvalidArgument for more bytes, and CudaError if the launch fails.
void CopyStaged(void* to, const void* from, int64_t bytes, CUstream_st* stream);

}  // namespace tokline
