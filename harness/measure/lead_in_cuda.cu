// Spin polls a clock with one thread. Sweep is a grid-stride loop of 16-byte loads.
#include "harness/measure/lead_in.h"

#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/global_timer.cuh"

namespace tokline {
namespace {

__global__ void SpinKernel(uint64_t ns) {
  const uint64_t begin = ptx::GlobalTimerNs();
  while (ptx::GlobalTimerNs() - begin < ns) continue;
}

// `write` is always false, but the compiler cannot know this and therefore keeps the loads.
__global__ void SweepKernel(const uint4* buffer, int64_t vectors, bool write, uint4* sink) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  uint4 sum{};
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors; i += stride) {
    const uint4 v = buffer[i];
    sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
  }
  if (write) *sink = sum;
}

}  // namespace

void Spin(double us, CUstream_st* stream) {
  Require(us >= 0 && us <= 1e6, "us is ", us, "; a spin must last between 0 and 1e6");
  LaunchKernel(SpinKernel, {.grid = dim3(1), .block = dim3(1)}, {.stream = stream},
               static_cast<uint64_t>(us * 1e3));
}

void Sweep(const void* buffer, int64_t bytes, CUstream_st* stream) {
  Require(bytes >= 16 && bytes % 16 == 0, "bytes is ", bytes,
          "; it must be a multiple of 16, >= 16");
  constexpr int64_t kThreads = 512;
  const int64_t vectors = bytes / 16;
  const int64_t blocks = std::min<int64_t>((vectors + kThreads - 1) / kThreads, 1024);
  LaunchKernel(
      SweepKernel,
      {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(static_cast<unsigned>(kThreads))},
      {.stream = stream}, static_cast<const uint4*>(buffer), vectors, false,
      static_cast<uint4*>(nullptr));
}

}  // namespace tokline
