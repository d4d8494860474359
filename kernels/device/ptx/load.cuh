// Global loads with cache hints.
#pragma once

#include <cuda_runtime.h>

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

}  // namespace tokline::ptx
