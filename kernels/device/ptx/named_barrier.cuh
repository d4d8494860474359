// Barriers 1 to 15 of a block, for some of its warps.
#pragma once

namespace tokline::ptx {

// Waits until `threads` threads, the caller's warp included, have arrived at `barrier`.
__device__ __forceinline__ void NamedBarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace tokline::ptx
