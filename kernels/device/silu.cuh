// The activation of gated MLPs, shared by the fused and the plain kernel.
#pragma once

namespace tokline {

// g / (1 + exp(-g)), computed such that the exponential never overflows.
__device__ __forceinline__ float Silu(float gate) {
  const float e = expf(-fabsf(gate));
  return __fdividef(gate >= 0 ? gate : gate * e, 1.0f + e);
}

}  // namespace tokline
