// Conversions between fp32 and the 16-bit storage types, two values at a time where the hardware
// supports it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/dtype.h"

namespace tokline {

template <DType kDType>
struct DeviceType;
template <>
struct DeviceType<DType::kBf16> {
  using Type = __nv_bfloat16;
};
template <>
struct DeviceType<DType::kF16> {
  using Type = __half;
};

__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(float x) { return x; }

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}

// Rounds x to T and converts it back.
template <typename T>
__device__ __forceinline__ float Round(float x) {
  return ToFloat(FromFloat<T>(x));
}

// Two elements packed in one register; the first is in the low half.
template <typename T>
__device__ __forceinline__ float2 Unpack2(uint32_t packed);
template <>
__device__ __forceinline__ float2 Unpack2<__nv_bfloat16>(uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 Unpack2<__half>(uint32_t packed) {
  __half2 pair;
  memcpy(&pair, &packed, sizeof(pair));
  return __half22float2(pair);
}

template <typename T>
__device__ __forceinline__ uint32_t Pack2(float low, float high);
template <>
__device__ __forceinline__ uint32_t Pack2<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t packed;
  memcpy(&packed, &pair, sizeof(packed));
  return packed;
}
template <>
__device__ __forceinline__ uint32_t Pack2<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t packed;
  memcpy(&packed, &pair, sizeof(packed));
  return packed;
}

// Rounds both to T and converts them back.
template <typename T>
__device__ __forceinline__ float2 Round2(float low, float high) {
  return Unpack2<T>(Pack2<T>(low, high));
}

// The sum of the squares of eight packed elements, added in their order.
template <typename T>
__device__ __forceinline__ float SumOfSquares(uint4 packed) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = Unpack2<T>(words[i]);
    sum = fmaf(x.y, x.y, fmaf(x.x, x.x, sum));
  }
  return sum;
}

template <typename T>
struct PairOf;
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};
template <>
struct PairOf<__half> {
  using Type = __half2;
};

// The elementwise products of two pairs, each rounded once.
template <typename T>
__device__ __forceinline__ uint32_t Multiply2(uint32_t a, uint32_t b) {
  typename PairOf<T>::Type x, y;
  memcpy(&x, &a, sizeof(x));
  memcpy(&y, &b, sizeof(y));
  const auto product = __hmul2_rn(x, y);
  uint32_t packed;
  memcpy(&packed, &product, sizeof(packed));
  return packed;
}

}  // namespace tokline
