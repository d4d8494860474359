// Implements CopyStaged and CopyCounted: 16 bytes per thread where both sides are aligned for it,
// and single bytes for the rest.
#include <algorithm>

#include "harness/platform/staged_copy.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {
namespace {

constexpr int kThreads = 256, kMaxBlocks = 32;

// The first `vectors` times 16 bytes as vectors.
__global__ void StagedCopyKernel(char* to, const char* from, int64_t bytes, int64_t vectors) {
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = first; i < vectors; i += stride) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (int64_t i = vectors * 16 + first; i < bytes; i += stride) to[i] = from[i];
}

// The count and the first vectors come together, since a load of host memory takes 1 us.
__global__ void CountedStagedCopyKernel(uint4* to, const uint4* from, int64_t most_vectors) {
  constexpr int64_t kEagerVectors = 1024;
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool eager = first < min(kEagerVectors, most_vectors);
  uint4 vector{};
  if (eager) vector = from[first];
  const int64_t vectors = min((*reinterpret_cast<const int64_t*>(from) + 15) / 16, most_vectors);
  if (eager && first < vectors) to[first] = vector;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = eager ? first + stride : first; i < vectors; i += stride) to[i] = from[i];
}

unsigned BlocksFor(int64_t items) {
  return static_cast<unsigned>(std::min<int64_t>(DivideUp(items, int64_t{kThreads}), kMaxBlocks));
}

}  // namespace

void CopyCounted(void* device, const void* staging, int64_t most, CUstream_st* stream) {
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(device) | reinterpret_cast<uintptr_t>(staging);
  Require(most >= 8 && addresses % 16 == 0, "a counted copy has at most ", most, " bytes from ",
          staging, " to ", device, "; it needs at least 8, 16 B aligned");
  const int64_t vectors = DivideUp(most, int64_t{16});
  LaunchKernel(CountedStagedCopyKernel, {.grid = dim3(BlocksFor(vectors)), .block = dim3(kThreads)},
               {.stream = stream, .dependent = true}, static_cast<uint4*>(device),
               static_cast<const uint4*>(staging), vectors);
}

void CopyStaged(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  Require(bytes >= 0 && bytes <= kMaxStagedCopyBytes, "a staged copy has ", bytes, " bytes; 0 to ",
          kMaxStagedCopyBytes, " are allowed");
  if (bytes == 0) return;
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  const int64_t vectors = addresses % 16 == 0 ? bytes / 16 : 0;
  const int64_t items = std::max(vectors, bytes - 16 * vectors);
  LaunchKernel(StagedCopyKernel, {.grid = dim3(BlocksFor(items)), .block = dim3(kThreads)},
               {.stream = stream, .dependent = true}, static_cast<char*>(to),
               static_cast<const char*>(from), bytes, vectors);
}

}  // namespace tokline
