// Thread block clusters (sm_90): the barrier of all their threads, and loads from one another's
// shared memory. Before sm_90 there are no clusters and nothing here may be reached.
#pragma once

#include <cstdint>

namespace tokline::ptx {

// Arrives, publishing what the thread wrote to shared memory; does not wait. All warps together.
__device__ __forceinline__ void ClusterArrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Waits until all threads of the cluster have arrived, and sees what they wrote.
__device__ __forceinline__ void ClusterWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Address of what stands at `shared` in the cluster's block `rank`.
__device__ __forceinline__ uint32_t ClusterAddress([[maybe_unused]] uint32_t shared,
                                                   [[maybe_unused]] uint32_t rank) {
  uint32_t address = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
#endif
  return address;
}

__device__ __forceinline__ float2 ClusterLoadFloat2([[maybe_unused]] uint32_t address) {
  float2 v{};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
#endif
  return v;
}

__device__ __forceinline__ float4 ClusterLoadFloat4([[maybe_unused]] uint32_t address) {
  float4 v{};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
#endif
  return v;
}

}  // namespace tokline::ptx
