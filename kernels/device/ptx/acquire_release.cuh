// Ordered accesses at device scope. What a block has written before a barrier is published by any
// of its threads that releases after the barrier, and seen by the threads of another block that
// pass a barrier after one of them has acquired it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tokline::ptx {

// Adds, and returns the old value.
__device__ __forceinline__ uint32_t AddAcquireRelease(uint32_t* address, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

}  // namespace tokline::ptx
