// mbarrier: counts arrivals in shared memory; waiters wait for a phase parity (sm_90 and newer). A
// barrier is identified by its address in shared memory.
#pragma once

#include <cstdint>

namespace tokline::ptx {

__device__ __forceinline__ void MbarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void MbarrierArrive(uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 state;\n"
      "mbarrier.arrive.shared::cta.b64 state, [%0];\n"
      "}" ::"r"(barrier)
      : "memory");
}

// Returns true once the phase with this parity has completed. It may suspend the thread for a while
// first.
__device__ __forceinline__ bool MbarrierTryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void MbarrierWait(uint32_t barrier, uint32_t parity) {
  while (!MbarrierTryWait(barrier, parity)) {
  }
}

// Waits for stores from other blocks of the cluster (bulk_copy.cuh) and makes them visible.
__device__ __forceinline__ void MbarrierWaitCluster(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

}  // namespace tokline::ptx
