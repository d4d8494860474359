// Special-function instructions.
#pragma once

namespace tokline::ptx {

// 2^x with an error of at most 2 ulp; 2^-inf is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tokline::ptx
