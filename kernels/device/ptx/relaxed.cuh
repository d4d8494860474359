// Relaxed accesses at device scope: each 32-bit word is atomic on its own, and nothing is ordered.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tokline::ptx {

__device__ __forceinline__ uint4 LoadRelaxed16(const uint32_t* words) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(words)
               : "memory");
  return v;
}

__device__ __forceinline__ uint2 LoadRelaxed8(const uint32_t* words) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(words)
               : "memory");
  return v;
}

__device__ __forceinline__ uint32_t LoadRelaxed4(const uint32_t* word) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
  return v;
}

__device__ __forceinline__ void StoreRelaxed4(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void StoreRelaxed8(uint32_t* words, uint2 value) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(words), "r"(value.x),
               "r"(value.y)
               : "memory");
}

}  // namespace tokline::ptx
