// Thread block clusters (sm_90): a barrier across all their threads, and addresses in another
// block's shared memory. There are no clusters before sm_90, so nothing here may be reached there.
#pragma once

#include <cstdint>

namespace tokline::ptx {

// Arrives and publishes what the thread wrote to shared memory, without waiting. All threads of a
// warp call it together.
__device__ __forceinline__ void ClusterArrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Waits until all threads of the cluster have arrived and makes their writes visible.
__device__ __forceinline__ void ClusterWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The address, in block `rank` of the cluster, that corresponds to `shared` in this block.
__device__ __forceinline__ uint32_t ClusterAddress([[maybe_unused]] uint32_t shared,
                                                   [[maybe_unused]] uint32_t rank) {
  uint32_t address = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
#endif
  return address;
}

}  // namespace tokline::ptx
