// Small copies between pinned host memory and the device, by a kernel. Between two graphs the
// handover to a copy engine and back takes 5 us or more; a kernel follows other kernels at once.
#pragma once

#include <cstdint>
#include <string_view>

struct CUstream_st;

namespace tokline {

// Part of the kernels' names, by which a trace can tell them from the work of a step.
inline constexpr std::string_view kStagedCopyKernel = "StagedCopyKernel";

// Above this many bytes the copy engine is as fast. Copies that are counted may be larger.
inline constexpr int64_t kMaxStagedCopyBytes = int64_t{256} << 10;

// Enqueues the copy of the first bytes of a block in pinned host memory. Their number is in the
// block's first eight bytes: an int64 of at least 8 and at most `most`, read when the copy runs.
// Both sides are 16 B aligned and have room up to a multiple of 16 bytes. A captured graph can thus
// copy data whose size differs from replay to replay.
void CopyCounted(void* device, const void* staging, int64_t most, CUstream_st* stream);

// Enqueues the copy of at most kMaxStagedCopyBytes. One side is pinned host memory. Throws
// InvalidArgument for more bytes, and CudaError if the launch fails.
void CopyStaged(void* to, const void* from, int64_t bytes, CUstream_st* stream);

}  // namespace tokline
