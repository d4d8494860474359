// Policies for the L2 (sm_80 and newer): how long it keeps the data of a load.
#pragma once

#include <cstdint>

namespace tokline::ptx {

// For data that is read once: the L2 evicts it first.
__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same policy as a constant where its value is known, for code that has no registers to spare:
// the value that createpolicy computes on sm_90 and newer, taken from CUTLASS (CacheHintSm90).
__device__ __forceinline__ uint64_t EvictFirstConstant() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return 0x12f0000000000000;
#else
  return EvictFirstPolicy();
#endif
}

}  // namespace tokline::ptx
