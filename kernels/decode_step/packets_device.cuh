// Words that blocks pass to each other through L2 while the kernel runs. A word that has not
// arrived is 0, and a word w is stored as ~w, so readers need no flag and no order: they load a
// word until it is not 0. The word that would be stored as 0 is a pair of NaNs, or a NaN, with all
// bits set; conversions and arithmetic give other NaNs, so it is never published.
//
// The words of a step lie in one of two sets. A step uses one and clears what the step before it
// left in the other, so the end of a kernel orders every clear before the next use.
#pragma once

#include "kernels/device/ptx/relaxed.cuh"

namespace tokline::decode_step {

__device__ __forceinline__ void Publish(uint32_t* word, uint32_t value) {
  ptx::StoreRelaxed4(word, ~value);
}
__device__ __forceinline__ void Publish(uint32_t* words, float2 value) {
  ptx::StoreRelaxed8(words, {~__float_as_uint(value.x), ~__float_as_uint(value.y)});
}

__device__ __forceinline__ bool Missing(uint4 v) {
  return v.x == 0 || v.y == 0 || v.z == 0 || v.w == 0;
}
__device__ __forceinline__ bool Missing(uint2 v) { return v.x == 0 || v.y == 0; }
__device__ __forceinline__ uint4 Load(const uint32_t* words, uint4) {
  return ptx::LoadRelaxed16(words);
}
__device__ __forceinline__ uint2 Load(const uint32_t* words, uint2) {
  return ptx::LoadRelaxed8(words);
}
__device__ __forceinline__ uint4 Decode(uint4 v) { return {~v.x, ~v.y, ~v.z, ~v.w}; }
__device__ __forceinline__ uint2 Decode(uint2 v) { return {~v.x, ~v.y}; }

// Counts fruitless polls. After some seconds without progress the kernel ends with an error: a
// block that is missing would otherwise occupy the device forever.
struct Patience {
  uint32_t left = 1u << 26;
  __device__ __forceinline__ void Spend() {
    if (--left == 0) __trap();
  }
};

// Loads kCount vectors until all words have arrived: vector i from words + offset(i) if valid(i)
// holds, and zeros otherwise. Words that are not `published` come from an earlier kernel. All lanes
// of the warp poll together: a converged poll is faster than lanes that spin separately.
template <typename Vector, int kCount, typename Offset, typename Valid>
__device__ __forceinline__ void Poll(Vector (&values)[kCount], const uint32_t* words,
                                     bool published, const Offset& offset, const Valid& valid) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = Vector{};
    if (valid(i)) values[i] = Load(words + offset(i), Vector{});
  }
  Patience patience;
  while (true) {
    bool missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) missing |= valid(i) && Missing(values[i]);
    if (!__any_sync(0xffffffffu, missing && published)) break;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (valid(i) && Missing(values[i])) values[i] = Load(words + offset(i), Vector{});
    }
    patience.Spend();
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (valid(i) && published) values[i] = Decode(values[i]);
  }
}

}  // namespace tokline::decode_step
