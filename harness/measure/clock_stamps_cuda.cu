// The stamp on a device: a kernel of one thread that appends the device's clock to a list.
#include "harness/measure/clock_stamps.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/global_timer.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {
namespace {

__global__ void StampKernel(int64_t* count, int64_t* stamps, int64_t room) {
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  // Before any access to memory: its latency grows with what the successor prefetches.
  const auto now_ns = static_cast<int64_t>(ptx::GlobalTimerNs());
  const int64_t index = (*count)++;
  if (index < room) stamps[index] = now_ns;
}

}  // namespace

void LaunchStamp(int64_t* count, int64_t* stamps, int64_t room, const LaunchOptions& options) {
  LaunchKernel(StampKernel, {.grid = dim3(1), .block = dim3(1)}, options, count, stamps, room);
}

}  // namespace tokline
