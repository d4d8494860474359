// Loads of a few floats that other blocks have written, past the L1.
#pragma once

#include <cuda_runtime.h>

namespace tokline {

// Loads two or four floats, aligned to their size together, in one access.
template <int kCount>
__device__ __forceinline__ void LoadFloats(const float* from, float (&values)[kCount]) {
  static_assert(kCount == 2 || kCount == 4);
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(values) = __ldcg(reinterpret_cast<const float4*>(from));
  } else {
    *reinterpret_cast<float2*>(values) = __ldcg(reinterpret_cast<const float2*>(from));
  }
}

}  // namespace tokline
