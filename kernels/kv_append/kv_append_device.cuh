// Appends K and V rows to the paged cache and transforms query rows.
//
// Grid: a row (one head of one token) is moved by head_dim / 8 neighbouring lanes, 16 bytes each; a
//   group of lanes has Policy::kRowsInFlight rows in flight, a block's width of rows apart.
// Shared memory: none. The norm's sum and the RoPE partner (element i +- head_dim / 2 lives
//   head_dim / 16 lanes away) come by shuffles, which all lanes execute, rows or not.
// Dependent launch: slots, positions, RoPE rows and norm weights are read before the wait; q, k, v
//   and the pool are touched after it.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/kv_append/kv_append_policy.h"

namespace tokline {

template <typename Element, int kHeadDimValue, RowOp kOpValue>
struct KvAppendPolicy {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr RowOp kOp = kOpValue;
  static constexpr int kThreads = 128;
  static constexpr int kLanes = kHeadDim / 8;
  static constexpr int kBlockRows = kThreads / kLanes;
  static constexpr int kRowsInFlight = kOp == RowOp::kCopy ? 4 : 2;
};

enum class RowKind : uint8_t { kNone, kQuery, kKey, kValue };

// Where a row comes from and goes to. kNone has neither.
struct AppendRow {
  RowKind kind;
  int32_t token;
  const void* source;
  void* target;
};

template <typename T>
__device__ __forceinline__ AppendRow LocateRow(const KvAppendParams& params,
                                               const KvAppendPlan& plan, int64_t row) {
  const PagedKvLayout& layout = params.layout;
  if (row >= plan.num_rows) return {RowKind::kNone, 0, nullptr, nullptr};
  const uint32_t token = static_cast<uint32_t>(row) / static_cast<uint32_t>(plan.rows_per_token);
  int32_t head = static_cast<int32_t>(static_cast<uint32_t>(row) - token * plan.rows_per_token);
  if (head < plan.num_q_rows) {
    const int64_t column = int64_t{head} * layout.head_dim;
    return {RowKind::kQuery, static_cast<int32_t>(token),
            static_cast<const T*>(params.q_in) + token * params.q_in_stride + column,
            static_cast<T*>(params.q_out) + token * params.q_out_stride + column};
  }
  head -= plan.num_q_rows;
  const bool is_key = head < layout.num_kv_heads;
  if (!is_key) head -= layout.num_kv_heads;
  const int64_t slot = params.slots[token];
  if (slot < 0) return {RowKind::kNone, 0, nullptr, nullptr};
  const int64_t page = slot >> (__ffs(layout.page_size) - 1);
  const int32_t page_row = static_cast<int32_t>(slot) & (layout.page_size - 1);
  const int64_t column = int64_t{head} * layout.head_dim;
  T* const pool = static_cast<T*>(params.kv);
  if (is_key) {
    return {RowKind::kKey, static_cast<int32_t>(token),
            static_cast<const T*>(params.k) + token * params.k_stride + column,
            pool + layout.KeyOffset(page, head, page_row)};
  }
  return {RowKind::kValue, static_cast<int32_t>(token),
          static_cast<const T*>(params.v) + token * params.v_stride + column,
          pool + layout.ValueOffset(page, head, page_row)};
}

// Eight elements of a row as floats that are exact in T.
template <typename T>
struct Vector8 {
  float x[8];

  __device__ __forceinline__ explicit Vector8(uint4 packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = Unpack2<T>(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
  __device__ __forceinline__ uint4 Pack() const {
    return {Pack2<T>(x[0], x[1]), Pack2<T>(x[2], x[3]), Pack2<T>(x[4], x[5]), Pack2<T>(x[6], x[7])};
  }
};

// By component, so that neither operand needs an address.
__device__ __forceinline__ uint4 Select(bool first, uint4 a, uint4 b) {
  return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
}

// The whole warp must call these two, whatever its rows are.
template <typename Policy>
__device__ __forceinline__ void NormRow(Vector8<typename Policy::T>& row, uint4 weight, float eps,
                                        bool enabled) {
  using T = typename Policy::T;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += row.x[i] * row.x[i];
  squares = WarpSum<Policy::kLanes>(squares);
  if (!enabled) return;
  const float scale = rsqrtf(squares * (1.0f / Policy::kHeadDim) + eps);
  const Vector8<T> weights(weight);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Rounded before it meets the weight, as the models do; the weight may be near 100.
    row.x[i] = Round<T>(Round<T>(row.x[i] * scale) * weights.x[i]);
  }
}

template <typename Policy>
__device__ __forceinline__ void RotateRow(Vector8<typename Policy::T>& row,
                                          const float4 (&table)[4], int lane, bool enabled) {
  using T = typename Policy::T;
  constexpr int kPartner = Policy::kLanes / 2;
  const uint4 own = row.Pack();  // exact: the values are T's
  const uint4 other = {
      __shfl_xor_sync(0xffffffffu, own.x, kPartner), __shfl_xor_sync(0xffffffffu, own.y, kPartner),
      __shfl_xor_sync(0xffffffffu, own.z, kPartner), __shfl_xor_sync(0xffffffffu, own.w, kPartner)};
  if (!enabled) return;
  const Vector8<T> partner(other);
  const float sign = lane < kPartner ? -1.0f : 1.0f;  // x1 cos - x2 sin; x2 cos + x1 sin
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    row.x[2 * i] = row.x[2 * i] * table[i].x + sign * partner.x[2 * i] * table[i].y;
    row.x[2 * i + 1] = row.x[2 * i + 1] * table[i].z + sign * partner.x[2 * i + 1] * table[i].w;
  }
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kThreads)
    KvAppendKernel(const __grid_constant__ KvAppendParams params,
                   const __grid_constant__ KvAppendPlan plan) {
  using T = typename Policy::T;
  constexpr int kRows = Policy::kRowsInFlight;
  const int lane = threadIdx.x % Policy::kLanes;
  const int64_t first_row =
      int64_t{blockIdx.x} * (Policy::kBlockRows * kRows) + threadIdx.x / Policy::kLanes;
  ptx::GridDependencyLaunch();

  AppendRow rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows[r] = LocateRow<T>(params, plan, first_row + r * Policy::kBlockRows);
  }

  uint4 data[kRows];
  if constexpr (Policy::kOp == RowOp::kCopy) {
    ptx::GridDependencyWait();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (rows[r].kind != RowKind::kNone) data[r] = static_cast<const uint4*>(rows[r].source)[lane];
    }
  } else {
    const bool has_rope = params.rope_cos_sin != nullptr;
    uint4 q_weight{}, k_weight{};
    if (params.q_norm_weight) q_weight = static_cast<const uint4*>(params.q_norm_weight)[lane];
    if (params.k_norm_weight) k_weight = static_cast<const uint4*>(params.k_norm_weight)[lane];
    float4 table[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (has_rope && (rows[r].kind == RowKind::kQuery || rows[r].kind == RowKind::kKey)) {
        const int64_t table_row = params.positions[rows[r].token];
        const float4* const pairs =
            reinterpret_cast<const float4*>(params.rope_cos_sin + table_row * Policy::kHeadDim) +
            lane % (Policy::kLanes / 2) * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) table[r][i] = pairs[i];
      }
    }
    ptx::GridDependencyWait();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      data[r] = uint4{};
      if (rows[r].kind != RowKind::kNone) data[r] = static_cast<const uint4*>(rows[r].source)[lane];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool is_query = rows[r].kind == RowKind::kQuery;
      const bool is_key = rows[r].kind == RowKind::kKey;
      Vector8<T> row(data[r]);
      NormRow<Policy>(row, Select(is_query, q_weight, k_weight), params.norm_eps,
                      (is_query && params.q_norm_weight) || (is_key && params.k_norm_weight));
      RotateRow<Policy>(row, table[r], lane, has_rope && (is_query || is_key));
      // Values keep their bits, NaN payloads included.
      if (is_query || is_key) data[r] = row.Pack();
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (rows[r].kind != RowKind::kNone) static_cast<uint4*>(rows[r].target)[lane] = data[r];
  }
}

}  // namespace tokline
