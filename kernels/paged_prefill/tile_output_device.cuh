// The epilogue of a tile: divides and rounds its rows, stages them in the shared memory of the
// query tile, and writes them with 16 bytes per lane.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/softmax_row.cuh"
#include "kernels/paged_prefill/context_walk_device.cuh"

namespace tokline {

// The offset in elements of `out` from a tile's first packed row to this one.
template <int kHeadDim>
__device__ __forceinline__ int64_t RowOffset(const PagedPrefillParams& params,
                                             const PackedRows& packed, int32_t row) {
  return packed.Token(row) * params.out_stride + packed.Head(row) * kHeadDim;
}

template <typename T, int kHeadDim, typename Placement>
struct TileOutput {
  const PagedPrefillParams& params;
  const QueryTile& tile;
  const PackedRows& packed;
  int32_t kv_head;
  unsigned char* staging;

  // Finishes one packed row. Whole warps call it, with one quad per row. values(n) returns the
  // lane's two values of columns 8 n to 8 n + 7.
  template <typename Values>
  __device__ __forceinline__ void Finish(int row, const RowState& state, float scale_log2,
                                         const Values& values) const {
    const int quad_lane = threadIdx.x % 4;
    const float sum = WarpSum<4>(state.sum);
    const RowDivisor divisor(sum);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const float2 pair = values(n);
      *reinterpret_cast<uint32_t*>(staging + Placement::Offset(row, n) + quad_lane * 4) =
          Pack2<T>(divisor.Divide(pair.x), divisor.Divide(pair.y));
    }
    if (params.lse_ln != nullptr && quad_lane == 0 && row < tile.num_rows) {
      params.lse_ln[int64_t{tile.q_begin + packed.Token(row)} * params.num_q_heads +
                    kv_head * packed.group + packed.Head(row)] =
          LogSumExp<T>(state.max, sum, scale_log2);
    }
  }

  // Writes kRows staged rows; the warp that staged them calls it. row_offset(row) is RowOffset.
  template <int kRows, typename OffsetOf>
  __device__ __forceinline__ void Store(int first_row, const OffsetOf& row_offset) const {
    constexpr int kSegments = kHeadDim / 8;
    constexpr int kPassRows = 32 / kSegments;
    const int lane = threadIdx.x % 32;
    const int segment = lane % kSegments;
    const bool is_full = first_row + kRows <= tile.num_rows;
    T* first = static_cast<T*>(params.out) + tile.q_begin * params.out_stride +
               int64_t{kv_head} * packed.group * kHeadDim + segment * 8;
#pragma unroll
    for (int pass = 0; pass < kRows / kPassRows; ++pass) {
      const int row = first_row + pass * kPassRows + lane / kSegments;
      if (!is_full && row >= tile.num_rows) continue;
      *reinterpret_cast<uint4*>(first + row_offset(row)) =
          *reinterpret_cast<const uint4*>(staging + Placement::Offset(row, segment));
    }
  }
};

}  // namespace tokline
