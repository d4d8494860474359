// The largest of several fp32 values and its id as one integer, so that the larger integer wins.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

namespace tokline {

// NaN counts as -inf, +inf as the largest float, -0 as +0, so that every comparison is an ordinary
// one.
__device__ __forceinline__ float Sanitize(float logit) {
  return logit == logit ? fminf(logit, FLT_MAX) + 0.0f : -INFINITY;
}

// Orders by a sanitized logit, then by lower id.
__device__ __forceinline__ uint64_t PackBest(float logit, int32_t id) {
  const uint32_t bits = __float_as_uint(logit);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(id);
}

__device__ __forceinline__ float BestLogit(uint64_t best) {
  const uint32_t ordered = static_cast<uint32_t>(best >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

__device__ __forceinline__ int32_t BestId(uint64_t best) {
  return static_cast<int32_t>(~static_cast<uint32_t>(best));
}

}  // namespace tokline
