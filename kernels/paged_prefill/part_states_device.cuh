// The states that the parts of a context leave in the workspace, and the kernel that merges them.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/load_floats.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/softmax_row.cuh"
#include "kernels/paged_prefill/context_walk_device.cuh"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

template <int kHeadDim>
struct PartStates {
  float* outputs;   // [num_parts, kPagedPrefillTileRows, kHeadDim] sums of weights times V
  float2* max_sum;  // [num_parts, kPagedPrefillTileRows] largest raw score, sum of the weights

  __device__ explicit PartStates(const PagedPrefillParams& params)
      : outputs(static_cast<float*>(params.workspace)),
        max_sum(reinterpret_cast<float2*>(outputs + int64_t{params.num_parts} *
                                                        kPagedPrefillTileRows * kHeadDim)) {}

  static __device__ int64_t Index(int32_t state, int row) {
    return int64_t{state} * kPagedPrefillTileRows + row;
  }

  // Stores one packed row. Whole warps call it, with one quad per row. values(n) returns the lane's
  // two values of columns 8 n to 8 n + 7.
  template <typename Values>
  __device__ __forceinline__ void Store(int32_t state, int row, int32_t num_rows,
                                        const RowState& row_state, const Values& values) const {
    const float sum = WarpSum<4>(row_state.sum);
    // The quad has one maximum. If the lane's own register were stored, ptxas would schedule the
    // main loop of the sm_90a kernel in another way.
    const float max = WarpMax<4>(row_state.max);
    if (row >= num_rows) return;
    const int quad_lane = threadIdx.x % 4;
    float* to = outputs + Index(state, row) * kHeadDim + quad_lane * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) *reinterpret_cast<float2*>(to + n * 8) = values(n);
    if (quad_lane == 0) max_sum[Index(state, row)] = {max, sum};
  }
};

inline constexpr int kPrefillMergeWarps = 4;
inline constexpr int kPrefillMergeAtOnce = 8;  // states that a warp loads together
inline constexpr int kPrefillMergeBlocks = 8;  // per part

// Merges the states of each row of the query tiles that are cut, and writes the rows. Grid:
// [num_parts, kPrefillMergeBlocks]. All blocks of a query tile's parts divide its rows. A warp
// merges a row, or the warps of a block share one if it has more states than a warp loads together.
// The states are added in an order that depends only on their number.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kPrefillMergeWarps * 32)
    PrefillMergeKernel(const __grid_constant__ PagedPrefillParams params) {
  constexpr int kWidth = kHeadDim / 32;  // columns of a lane
  __shared__ float of_warps[kPrefillMergeWarps][kHeadDim];
  ptx::GridDependencyLaunch();
  const PagedPrefillTile planned = params.tiles[blockIdx.x];
  const PagedPrefillPart part = params.parts[blockIdx.x];
  const QueryTile tile(params, planned);
  const PackedRows packed(params.num_q_heads / params.layout.num_kv_heads);
  const PartStates<kHeadDim> states(params);
  const float scale_log2 = params.scale * 1.44269504088896340736f;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const bool shared_rows = part.count > kPrefillMergeAtOnce;
  const int sharing = shared_rows ? kPrefillMergeWarps : 1;  // warps that share a row
  const int share = shared_rows ? warp : 0;
  const int block_rows = kPrefillMergeWarps / sharing;
  const int blocks = part.count * kPrefillMergeBlocks;
  const int block = part.index * kPrefillMergeBlocks + blockIdx.y;
  const auto state_index = [&](int32_t index, int row) {
    return PartStates<kHeadDim>::Index(part.first_state + index, row);
  };
  ptx::GridDependencyWait();

  for (int first_row = block * block_rows; first_row < tile.num_rows;
       first_row += blocks * block_rows) {
    const int row = first_row + (shared_rows ? 0 : warp);
    if (row >= tile.num_rows) break;  // never where a row is shared
    float max = -INFINITY;
    for (int index = lane; index < part.count; index += 32) {
      max = fmaxf(max, __ldcg(&states.max_sum[state_index(index, row)]).x);
    }
    max = WarpMax<32>(max);
    const float offset = FiniteOffset<T>(max, scale_log2);
    float out[kWidth] = {};
    float sum = 0;  // of the weights of this lane's states
    for (int first = 0; first < part.count; first += kPrefillMergeAtOnce * sharing) {
      alignas(16) float values[kPrefillMergeAtOnce][kWidth];
#pragma unroll
      for (int i = 0; i < kPrefillMergeAtOnce; ++i) {
        const int index = min(first + i * sharing + share, part.count - 1);
        LoadFloats(states.outputs + state_index(index, row) * kHeadDim + lane * kWidth, values[i]);
      }
      float factor = 0;  // of state first + lane; a state that has seen nothing gets 0
      if (lane < kPrefillMergeAtOnce * sharing && first + lane < part.count) {
        const float2 max_sum = __ldcg(&states.max_sum[state_index(first + lane, row)]);
        factor = ptx::Exp2(ExponentOffset<T>(max_sum.x, scale_log2) - offset);
        sum = fmaf(factor, max_sum.y, sum);
      }
#pragma unroll
      for (int i = 0; i < kPrefillMergeAtOnce; ++i) {
        const float of_state = __shfl_sync(0xffffffffu, factor, i * sharing + share);
        if (first + i * sharing + share >= part.count) break;
#pragma unroll
        for (int column = 0; column < kWidth; ++column) {
          out[column] = fmaf(of_state, values[i][column], out[column]);
        }
      }
    }
    sum = WarpSum<32>(sum);
    if (shared_rows) {
#pragma unroll
      for (int column = 0; column < kWidth; ++column) {
        of_warps[warp][lane * kWidth + column] = out[column];
      }
      __syncthreads();
      if (warp == 0) {
        for (int other = 1; other < kPrefillMergeWarps; ++other) {
#pragma unroll
          for (int column = 0; column < kWidth; ++column) {
            out[column] += of_warps[other][lane * kWidth + column];
          }
        }
      }
      __syncthreads();
      if (warp != 0) continue;
    }
    const RowDivisor divisor(sum);
    const int64_t token = tile.q_begin + packed.Token(row);
    const int32_t head = planned.kv_head * packed.group + packed.Head(row);
    T* to = static_cast<T*>(params.out) + token * params.out_stride + int64_t{head} * kHeadDim +
            lane * kWidth;
#pragma unroll
    for (int column = 0; column < kWidth; column += 2) {
      *reinterpret_cast<uint32_t*>(to + column) =
          Pack2<T>(divisor.Divide(out[column]), divisor.Divide(out[column + 1]));
    }
    if (params.lse_ln != nullptr && lane == 0) {
      params.lse_ln[token * params.num_q_heads + head] = LogSumExp<T>(max, sum, scale_log2);
    }
  }
}

}  // namespace tokline
