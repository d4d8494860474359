// cp.async: 16-byte asynchronous copies from global to shared memory (sm_80 and newer).
#pragma once

#include <cstdint>

namespace tokline::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes. If `valid` is false, it writes 16 zero bytes instead and does not read `source`.
__device__ __forceinline__ void CpAsync16(uint32_t shared, const void* source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(source),
               "r"(bytes)
               : "memory");
}

// The same under a policy for the L2.
__device__ __forceinline__ void CpAsync16(uint32_t shared, const void* source, bool valid,
                                          uint64_t policy) {
  const int bytes = valid ? 16 : 0;
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(shared),
      "l"(source), "r"(bytes), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's most recent groups are unfinished.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tokline::ptx
