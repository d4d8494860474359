// cp.async.bulk.tensor: the copy engine loads a box of a tensor and signals an mbarrier (sm_90).
#pragma once

#include <cstdint>

namespace tokline::ptx {

// Makes mbarrier initialisations visible to the copy engine and, before ClusterArrive(), to the
// other blocks of the cluster.
__device__ __forceinline__ void FenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's ordinary shared-memory accesses before later accesses by the copy engine and
// wgmma.
__device__ __forceinline__ void FenceProxyAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives once and announces `bytes`, which copies will complete on the barrier.
__device__ __forceinline__ void MbarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Loads `bytes` contiguous bytes, a multiple of 16; both addresses are 16 B aligned.
__device__ __forceinline__ void BulkCopyToShared(uint32_t shared, const void* global,
                                                 uint32_t bytes, uint32_t barrier,
                                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Copies `bytes` contiguous bytes, a multiple of 16, to the shared memory of a block of the
// cluster. `to` and `barrier` are ClusterAddress()es of that block; all addresses are 16 B aligned.
__device__ __forceinline__ void BulkCopyToCluster(uint32_t to, uint32_t from, uint32_t bytes,
                                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Loads the box at {c0, c1, c2} of the tensor that `map` describes (device/tensor_map.h). Elements
// outside the tensor arrive as zeros and count towards the bytes.
__device__ __forceinline__ void TensorCopyToShared(uint32_t shared, const void* map, int32_t c0,
                                                   int32_t c1, int32_t c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void TensorCopyToShared(uint32_t shared, const void* map, int32_t c0,
                                                   int32_t c1, int32_t c2, uint32_t barrier,
                                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void TensorCopyToShared(uint32_t shared, const void* map, int32_t c0,
                                                   int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                                                   uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void TensorCopyToShared(uint32_t shared, const void* map, int32_t c0,
                                                   int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                                                   uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier), "l"(policy)
      : "memory");
}

// Stores floats to the shared memory of a block of the cluster, whose mbarrier at `barrier` counts
// their bytes. Both addresses are ClusterAddress()es of that block.
__device__ __forceinline__ void ClusterStoreAsync(uint32_t address, float2 value,
                                                  uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void ClusterStoreAsync(uint32_t address, float4 value,
                                                  uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

}  // namespace tokline::ptx
