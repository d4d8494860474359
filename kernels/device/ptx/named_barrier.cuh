// Barriers 1 to 15 of a block, which synchronise a subset of its warps.
#pragma once

namespace tokline::ptx {

// Waits until `threads` threads, including the caller's warp, have arrived at `barrier`.
__device__ __forceinline__ void NamedBarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Arrives at `barrier` without waiting.
__device__ __forceinline__ void NamedBarrierArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace tokline::ptx
