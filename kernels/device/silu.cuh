// The activation of gated MLPs.
#pragma once

namespace tokline {

__device__ __forceinline__ float Silu(float x) { return x / (1.0f + expf(-x)); }

}  // namespace tokline
