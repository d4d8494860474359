// Cache hints.
#pragma once

namespace tokline::ptx {

// Asks for the line of `pointer` to be brought to L2. A hint: it makes no stale data visible.
__device__ __forceinline__ void PrefetchL2(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

}  // namespace tokline::ptx
