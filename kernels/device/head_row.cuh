// A row of one head, held by head_dim / 8 neighbouring lanes: QK-norm and RoPE.
//
// A lane holds four elements of the row's first half and the four elements half a row further,
// which RoPE pairs with them, packed in x, y and z, w of a uint4.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline {

template <typename T, int kHeadDim>
struct HeadRow {
  static constexpr int kLanes = kHeadDim / 8;

  static __device__ __forceinline__ uint4 Load(const void* row, int lane) {
    const uint2 first = static_cast<const uint2*>(row)[lane];
    const uint2 second = static_cast<const uint2*>(row)[lane + kLanes];
    return {first.x, first.y, second.x, second.y};
  }

  static __device__ __forceinline__ void Store(void* row, int lane, uint4 data) {
    static_cast<uint2*>(row)[lane] = {data.x, data.y};
    static_cast<uint2*>(row)[lane + kLanes] = {data.z, data.w};
  }

  static __device__ __forceinline__ uint4 Pack(const float (&x)[8]) {
    return {Pack2<T>(x[0], x[1]), Pack2<T>(x[2], x[3]), Pack2<T>(x[4], x[5]), Pack2<T>(x[6], x[7])};
  }

  static __device__ __forceinline__ void Unpack(uint4 packed, float (&x)[8]) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = Unpack2<T>(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }

  // RMSNorm over the row. All lanes of the warp must call this, whatever their rows are; rows where
  // it is not `enabled` stay as they are.
  static __device__ __forceinline__ uint4 Norm(uint4 packed, uint4 weight, float eps,
                                               bool enabled) {
    float row[8];
    Unpack(packed, row);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += row[i] * row[i];
    squares = WarpSum<kLanes>(squares);
    if (!enabled) return packed;
    const float scale = rsqrtf(squares * (1.0f / kHeadDim) + eps);
#pragma unroll
    for (int i = 0; i < 8; ++i) row[i] *= scale;
    // Rounded before it is multiplied by the weight, as the models do; the weight may be near 100.
    const uint4 rounded = Pack(row);
    return {Multiply2<T>(rounded.x, weight.x), Multiply2<T>(rounded.y, weight.y),
            Multiply2<T>(rounded.z, weight.z), Multiply2<T>(rounded.w, weight.w)};
  }

  // Loads (cos, sin) of the lane's four pairs from row `position` of the table.
  static __device__ __forceinline__ void LoadTable(const float* rope_cos_sin, int32_t position,
                                                   int lane, float4 (&table)[2]) {
    const auto* const pairs =
        reinterpret_cast<const float4*>(rope_cos_sin + int64_t{position} * kHeadDim);
    table[0] = pairs[2 * lane];
    table[1] = pairs[2 * lane + 1];
  }

  static __device__ __forceinline__ uint4 Rotate(uint4 packed, const float4 (&table)[2]) {
    float row[8];
    Unpack(packed, row);
    const float cosine[4] = {table[0].x, table[0].z, table[1].x, table[1].z};
    const float sine[4] = {table[0].y, table[0].w, table[1].y, table[1].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = row[i];
      const float second = row[i + 4];
      row[i] = first * cosine[i] - second * sine[i];
      row[i + 4] = second * cosine[i] + first * sine[i];
    }
    return Pack(row);
  }
};

}  // namespace tokline
