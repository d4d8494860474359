// Loading and ordering logits, and their fixed-point masses. Masses are integers, so that sums do
// not depend on the order in which threads add them.
#pragma once

#include <cstdint>

#include "kernels/device/packed_best.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/sampling/sampling_plan.h"

namespace tokline {

// Loads logits i to i + 3 of a row as they are, with -inf beyond the vocabulary. `i` is a multiple
// of 4.
__device__ __forceinline__ float4 LoadRaw(const float* row, int32_t i, int32_t vocab_size,
                                          bool vector_loads) {
  if (vector_loads && i + 3 < vocab_size) return *reinterpret_cast<const float4*>(row + i);
  return {i < vocab_size ? row[i] : -INFINITY, i + 1 < vocab_size ? row[i + 1] : -INFINITY,
          i + 2 < vocab_size ? row[i + 2] : -INFINITY, i + 3 < vocab_size ? row[i + 3] : -INFINITY};
}

__device__ __forceinline__ float4 Sanitize(const float4& x) {
  return {Sanitize(x.x), Sanitize(x.y), Sanitize(x.z), Sanitize(x.w)};
}

// The same, sanitized.
__device__ __forceinline__ float4 LoadLogits(const float* row, int32_t i, int32_t vocab_size,
                                             bool vector_loads) {
  return Sanitize(LoadRaw(row, i, vocab_size, vector_loads));
}

__device__ __forceinline__ float Component(const float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Returns the best of the warp's logits, packed.
__device__ __forceinline__ uint64_t WarpBest(float logit, int32_t id) {
  const uint64_t packed = PackBest(logit, id);
  const auto high = static_cast<uint32_t>(packed >> 32);
  const uint32_t highest = __reduce_max_sync(0xffffffffu, high);
  const uint32_t low = high == highest ? static_cast<uint32_t>(packed) : 0;
  return uint64_t{highest} << 32 | __reduce_max_sync(0xffffffffu, low);
}

struct Max64 {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a > b ? a : b;
  }
};

// The fixed-point mass exp((logit - reference) / temperature) in units of 2^-40. A row of 2^22
// logits sums to at most 2^62.
struct MassOf {
  float reference;   // the largest logit of the row or chunk
  float log2_scale;  // log2(e) / temperature

  static constexpr float kOne = 0x1p40f;

  __device__ __forceinline__ MassOf(float reference_logit, float temperature)
      : reference(reference_logit), log2_scale(fminf(1.44269504f / temperature, FLT_MAX)) {}

  __device__ __forceinline__ uint64_t operator()(float logit) const {
    if (logit == reference) return uint64_t{1} << 40;  // exact at any scale
    return __float2ull_rn(ptx::Exp2((logit - reference) * log2_scale) * kOne);
  }
};

}  // namespace tokline
