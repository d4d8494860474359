// Global loads with cache hints, and prefetches.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tokline::ptx {

// Loads 16 bytes that are read once and never written during the kernel's lifetime. The load does
// not allocate in L1 and fetches the surrounding 256-byte block into L2.
__device__ __forceinline__ uint4 LoadStream16(const void* pointer) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(pointer));
  return r;
}

// Prefetches the cache line of `pointer` into L1.
__device__ __forceinline__ void PrefetchL1(const void* pointer) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(pointer));
}

// Prefetches `bytes` (a multiple of 16) from `pointer` on, which is 16 B aligned, into L2. This is
// a hint and reads nothing, so it may be used on data that another kernel is still writing. It is a
// no-op before sm_90.
__device__ __forceinline__ void PrefetchL2Bulk([[maybe_unused]] const void* pointer,
                                               [[maybe_unused]] uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(pointer), "r"(bytes));
#endif
}

}  // namespace tokline::ptx
