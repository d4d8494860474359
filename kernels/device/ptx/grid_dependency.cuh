// griddepcontrol: programmatic dependent launch (sm_90 and newer; a no-op before).
#pragma once

namespace tokline::ptx {

// Blocks until everything that the preceding kernels on the stream wrote is visible.
__device__ __forceinline__ void GridDependencyWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel on the stream start once every block has called this or ended.
__device__ __forceinline__ void GridDependencyLaunch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tokline::ptx
