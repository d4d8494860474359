// Ordered accesses at device scope. Any thread that releases after a barrier publishes what its
// block has written before the barrier. The threads of another block see it after a barrier that
// follows the acquire by one of them.
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
