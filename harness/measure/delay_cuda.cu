// The delay on the device: one thread polls the clock. The next kernel may start at once and
// prefetch its weights, as it would beside a kernel that is really slow; the clock starts when all
// earlier work is done.
#include <cstdint>

#include "harness/measure/delay.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx/global_timer.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {
namespace {

__global__ void DelayKernel(uint64_t ns) {
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const uint64_t begin = ptx::GlobalTimerNs();
  while (ptx::GlobalTimerNs() - begin < ns) {
  }
}

}  // namespace

void Launch(const DelayParams& params, const LaunchOptions& options) {
  Validate(params);
  LaunchKernel(DelayKernel, {.grid = dim3(1), .block = dim3(1)}, options,
               static_cast<uint64_t>(1e3 * params.us));
}

}  // namespace tokline
