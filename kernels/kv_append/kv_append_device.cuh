// Appends K and V rows to the paged cache and transforms query rows.
//
// Grid: head_dim / 8 neighbouring lanes move one row (one head of one token), 16 bytes each. Such a
//   group of lanes takes up to Policy::kRows neighbouring heads of one token, all of them query,
//   all K or all V heads: they share one slot, one RoPE row and one norm weight, and have a
//   constant address stride.
// Shared memory: none. Both elements of a RoPE pair are in the same lane, which holds 8 bytes of
//   each half of a row. The norm's sum uses shuffles; all lanes of a warp execute them if one must.
// Dependent launch: slots, positions, RoPE rows and norm weights are read before the wait; q, k, v
//   and the pool are accessed after it.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/head_row.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/kv_append/kv_append_plan.h"

namespace tokline {

template <typename Element, int kHeadDimValue, RowOp kOpValue, int kRowsValue>
struct KvAppendPolicy {
  using T = Element;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr RowOp kOp = kOpValue;
  static constexpr int kRows = kRowsValue;
  static constexpr int kThreads = 128;
  using Row = HeadRow<T, kHeadDim>;
  static constexpr int kLanes = Row::kLanes;
  static constexpr int kBlockGroups = kThreads / kLanes;
};

enum class HeadKind : uint8_t { kNone, kQuery, kKey, kValue };

// What a group of lanes works on: neighbouring heads of one token. kNone means past the last token.
template <typename T>
struct HeadGroup {
  HeadKind kind = HeadKind::kNone;
  int32_t head = 0;  // the first head, counted among those of its kind
  int32_t rows = 0;
  int64_t token = 0;
  int64_t slot = -1;  // of K and V
  const T* source = nullptr;
  const void* norm_weight = nullptr;

  __device__ __forceinline__ bool Transforms() const {
    return kind == HeadKind::kQuery || kind == HeadKind::kKey;
  }
  __device__ __forceinline__ bool Writes() const { return kind == HeadKind::kQuery || slot >= 0; }
};

template <typename Policy>
__device__ __forceinline__ HeadGroup<typename Policy::T> LocateGroup(const KvAppendParams& params,
                                                                     const KvAppendPlan& plan,
                                                                     uint32_t index) {
  using T = typename Policy::T;
  const uint32_t token = index / static_cast<uint32_t>(plan.groups_per_token);
  if (token >= params.num_tokens) return {};
  const int32_t part = static_cast<int32_t>(index - token * plan.groups_per_token);
  const int32_t kv_part = part - plan.q_groups;

  HeadGroup<T> group;
  group.token = token;
  const void* base = params.q_in;
  int64_t stride = params.q_in_stride;
  int32_t heads = plan.num_q_rows;
  if (kv_part < 0) {
    group.kind = HeadKind::kQuery;
    group.head = part * Policy::kRows;
    group.norm_weight = params.q_norm_weight;
  } else {
    const bool is_key = kv_part < plan.kv_groups;
    group.kind = is_key ? HeadKind::kKey : HeadKind::kValue;
    group.head = (is_key ? kv_part : kv_part - plan.kv_groups) * Policy::kRows;
    group.norm_weight = is_key ? params.k_norm_weight : nullptr;
    group.slot = params.slots[token];
    base = is_key ? params.k : params.v;
    stride = is_key ? params.k_stride : params.v_stride;
    heads = params.layout.num_kv_heads;
  }
  group.rows = min(Policy::kRows, heads - group.head);
  group.source =
      static_cast<const T*>(base) + token * stride + int64_t{group.head} * Policy::kHeadDim;
  return group;
}

// Where the group's first row goes, and the distance in elements from one row to the next.
template <typename T>
struct RowTarget {
  T* first = nullptr;
  int64_t stride = 0;
};

template <typename T>
__device__ __forceinline__ RowTarget<T> TargetOf(const KvAppendParams& params,
                                                 const HeadGroup<T>& group) {
  const PagedKvLayout& layout = params.layout;
  if (group.kind == HeadKind::kQuery) {
    return {static_cast<T*>(params.q_out) + group.token * params.q_out_stride +
                int64_t{group.head} * layout.head_dim,
            layout.head_dim};
  }
  const int64_t slot = group.slot;
  const int64_t page = layout.Pages().PageOf(slot);
  const int32_t page_row = layout.Pages().RowOf(slot);
  T* const pool = static_cast<T*>(params.kv);
  if (group.kind == HeadKind::kKey) {
    return {pool + layout.KeyOffset(page, group.head, page_row), layout.HeadStride()};
  }
  return {pool + layout.ValueOffset(page, group.head, page_row), layout.HeadStride()};
}

// Loads a lane's 16 bytes of a row, in HeadRow's arrangement if rows are transformed.
template <typename Policy>
__device__ __forceinline__ uint4 LoadLane(const void* row, int lane) {
  if constexpr (Policy::kOp == RowOp::kCopy) {
    return static_cast<const uint4*>(row)[lane];
  } else {
    return Policy::Row::Load(row, lane);
  }
}

template <typename Policy>
__device__ __forceinline__ void StoreLane(void* row, int lane, uint4 data) {
  if constexpr (Policy::kOp == RowOp::kCopy) {
    static_cast<uint4*>(row)[lane] = data;
  } else {
    Policy::Row::Store(row, lane, data);
  }
}

template <typename Policy>
__global__ void __launch_bounds__(Policy::kThreads)
    KvAppendKernel(const __grid_constant__ KvAppendParams params,
                   const __grid_constant__ KvAppendPlan plan) {
  using T = typename Policy::T;
  constexpr int kRows = Policy::kRows;
  constexpr bool kTransforms = Policy::kOp == RowOp::kTransform;
  const int lane = threadIdx.x % Policy::kLanes;
  ptx::GridDependencyLaunch();

  const HeadGroup<T> group = LocateGroup<Policy>(
      params, plan, blockIdx.x * Policy::kBlockGroups + threadIdx.x / Policy::kLanes);
  const bool has_norm = kTransforms && (params.q_norm_weight || params.k_norm_weight);
  const bool has_rope = kTransforms && params.rope_cos_sin != nullptr;
  uint4 weight{};
  float4 table[2]{};
  if (has_norm && group.norm_weight) weight = LoadLane<Policy>(group.norm_weight, lane);
  if (has_rope && group.Transforms()) {
    Policy::Row::LoadTable(params.rope_cos_sin, params.positions[group.token], lane, table);
  }

  // The address of a single row is computed before the wait. With many tokens, where blocks start
  // one after another, it is better if the loads do not wait for the slot.
  RowTarget<T> target{};
  if (kRows == 1 && group.Writes()) target = TargetOf(params, group);

  ptx::GridDependencyWait();
  uint4 data[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    data[r] = uint4{};
    if (r < group.rows) data[r] = LoadLane<Policy>(group.source + r * Policy::kHeadDim, lane);
  }
  if (kTransforms && __any_sync(0xffffffffu, group.Transforms())) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint4 row = data[r];
      if (has_norm) row = Policy::Row::Norm(row, weight, params.norm_eps, group.norm_weight);
      if (has_rope) row = Policy::Row::Rotate(row, table);
      if (group.Transforms()) data[r] = row;  // V rows keep their bits, including NaN payloads
    }
  }
  if (!group.Writes()) return;
  if (kRows > 1) target = TargetOf(params, group);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < group.rows) StoreLane<Policy>(target.first + r * target.stride, lane, data[r]);
  }
}

}  // namespace tokline
