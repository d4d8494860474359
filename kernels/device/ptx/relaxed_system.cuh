// Relaxed accesses at system scope, for memory that several devices share: each scalar of a vector
// is atomic on its own, and nothing is ordered.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tokline::ptx {

__device__ __forceinline__ ulonglong2 LoadRelaxedSystem16(const void* address) {
  ulonglong2 v;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(v.x), "=l"(v.y)
               : "l"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void StoreRelaxedSystem16(void* address, ulonglong2 value) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(address), "l"(value.x),
               "l"(value.y)
               : "memory");
}

__device__ __forceinline__ uint32_t LoadRelaxedSystem4(const void* address) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

__device__ __forceinline__ void StoreRelaxedSystem8(void* address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void StoreRelaxedSystem4(void* address, uint32_t value) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace tokline::ptx
