// Thread block clusters (sm_90): a barrier across all their threads, and addresses in another
// block's shared memory. There are no clusters before sm_90, so nothing here may be reached there.
#pragma once

#include <cstdint>

namespace tokline::ptx {

// Arrives without waiting. It publishes only mbarriers whose initialisation FenceMbarrierInit has
// followed: data travel with an mbarrier that counts them. If others will then write to this
// block's shared memory, the block's copies to it must have arrived before the call, and the values
// loaded from it must have been used, as every MMA uses those of ldmatrix. Releasing writes to a
// cluster costs a fence of the whole device, MEMBAR.ALL.GPU, which made a step of Qwen3-0.6B at
// batch 8 11 % longer. All threads of a warp call it together.
__device__ __forceinline__ void ClusterArrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// Waits until all threads of the cluster have arrived.
__device__ __forceinline__ void ClusterWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Arrives without waiting, and publishes this thread's writes to shared memory. All threads of a
// warp call it together.
__device__ __forceinline__ void ClusterArriveRelease() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// A barrier across the cluster, like __syncthreads() across a block.
__device__ __forceinline__ void ClusterSync() {
  ClusterArriveRelease();
  ClusterWait();
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

// The same for a generic pointer, through which the block can load and store.
template <typename T>
__device__ __forceinline__ T* ClusterPointer(T* shared, [[maybe_unused]] uint32_t rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint64_t address;
  asm volatile("mapa.u64 %0, %1, %2;"
               : "=l"(address)
               : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
  return reinterpret_cast<T*>(address);
#else
  return shared;
#endif
}

}  // namespace tokline::ptx
