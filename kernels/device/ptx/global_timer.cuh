// The device's wall clock. Its resolution depends on the device: 32 ns to 1 us.
#pragma once

#include <cstdint>

namespace tokline::ptx {

__device__ __forceinline__ uint64_t GlobalTimerNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace tokline::ptx
