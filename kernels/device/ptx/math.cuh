// Special-function instructions, and values that the compiler computes where they are needed.
#pragma once

#include <cstdint>

namespace tokline::ptx {

// 2^x with an error of at most 2 ulp; 2^-inf is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns `value` and hides from the compiler where it comes from. Values derived from it are then
// computed in each iteration of a loop, instead of once before it, which would take a register or a
// place in local memory.
__device__ __forceinline__ uint32_t HereAndNow(uint32_t value) {
  asm volatile("mov.b32 %0, %0;" : "+r"(value));
  return value;
}

}  // namespace tokline::ptx
