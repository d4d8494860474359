// A flag in memory that several devices share. What a block has written before a barrier and a
// release of the flag is visible to the threads that pass a barrier after an acquire of the flag.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tokline::ptx {

__device__ __forceinline__ void StoreReleaseSystem4(void* address, uint32_t value) {
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t LoadAcquireSystem4(const void* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

}  // namespace tokline::ptx
