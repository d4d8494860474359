// Global loads with cache hints, and hints without a load.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tokline::ptx {

// 16 bytes that are read once and never written while the kernel lives: past L1, and the 256-byte
// block around them into L2.
__device__ __forceinline__ uint4 LoadStream16(const void* pointer) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(pointer));
  return r;
}

// Asks the L2 for the 128-byte line of `pointer`. A hint reads nothing: what another kernel is
// still writing may be asked for.
__device__ __forceinline__ void PrefetchL2Line(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

// The same for `bytes` (a multiple of 16) from `pointer`, 16 B aligned. Before sm_90 it does
// nothing.
__device__ __forceinline__ void PrefetchL2Bulk([[maybe_unused]] const void* pointer,
                                               [[maybe_unused]] uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(pointer), "r"(bytes));
#endif
}

}  // namespace tokline::ptx
