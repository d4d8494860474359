// The end of a task: the states of its warps are combined into the state of each row. A task that
// is the only one of its sequence writes the output. Otherwise a task writes a partial state, and
// the last block to arrive at the counter of the sequence and KV head adds all of them in plan
// order, so the result does not depend on which block came last. That block resets the counter. If
// there are many states, they are first added in bundles, each by the last block to arrive at it.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/load_floats.cuh"
#include "kernels/device/ptx/acquire_release.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline::chunk_decode {

// States in shared memory: outputs [kWarps * warp_rows][kStateStride], then (max, sum) of each.
template <typename P>
struct SharedStates {
  float* outputs;
  float2* max_sum;
  int warp_rows;

  __device__ SharedStates(unsigned char* memory, int rows_of_warp)
      : outputs(reinterpret_cast<float*>(memory)),
        max_sum(reinterpret_cast<float2*>(outputs + P::kWarps * rows_of_warp * P::kStateStride)),
        warp_rows(rows_of_warp) {}
};

__device__ __forceinline__ float Weight(float row_max, float best) {
  return row_max == -INFINITY ? 0.0f : ptx::Exp2(row_max - best);
}

// The state of one row, spread over a warp: this lane's head_dim / 32 values, not normalised.
template <typename P>
struct RowSlice {
  static constexpr int kWidth = P::kHeadDim / 32;
  float values[kWidth] = {};
  float row_max = -INFINITY;
  float row_sum = 0;

  __device__ __forceinline__ void AddScaled(const float* row, float weight) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += weight * row[i];
  }
  // The same, from this lane's place in a row, with one vector access.
  __device__ __forceinline__ void AddScaledVector(const float* from, float weight) {
    if constexpr (kWidth == 4) {
      const float4 row = *reinterpret_cast<const float4*>(from);
      const float loaded[kWidth] = {row.x, row.y, row.z, row.w};
      AddScaled(loaded, weight);
    } else {
      const float2 row = *reinterpret_cast<const float2*>(from);
      const float loaded[kWidth] = {row.x, row.y};
      AddScaled(loaded, weight);
    }
  }
  // Rescales the state to the maximum `best`, which is not less than its own.
  __device__ __forceinline__ void Rescale(float best) {
    const float weight = Weight(row_max, best);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] *= weight;
    row_sum *= weight;
    row_max = best;
  }
  // Stores the values to this lane's place in a row.
  __device__ __forceinline__ void StoreValues(float* to) const {
    if constexpr (kWidth == 4) {
      *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
    } else {
      *reinterpret_cast<float2*>(to) = {values[0], values[1]};
    }
  }
};

// This lane's values of a row in the workspace, which other blocks have written.
template <typename P>
__device__ __forceinline__ void LoadSlice(float (&values)[RowSlice<P>::kWidth], const float* row) {
  LoadFloats(row + threadIdx.x % 32 * RowSlice<P>::kWidth, values);
}

// Returns the natural logarithm of the sum of exponentials, from the maximum and the sum in base 2.
__device__ __forceinline__ float LogSumExp(float row_max, float row_sum) {
  constexpr float kLn2 = 0.693147180559945309f;
  return row_sum == 0 ? -INFINITY : (row_max + log2f(row_sum)) * kLn2;
}

// Writes a finished row: the output normalised, and the natural log-sum-exp.
template <typename P>
__device__ __forceinline__ void WriteRow(const Arguments& args, int64_t seq, int q_head,
                                         const RowSlice<P>& slice) {
  using T = typename P::T;
  const int lane = threadIdx.x % 32;
  const float inverse = slice.row_sum == 0 ? 0.0f : 1.0f / slice.row_sum;
  T* out = static_cast<T*>(args.params.out) + seq * args.params.out_stride +
           int64_t{q_head} * P::kHeadDim + lane * RowSlice<P>::kWidth;
#pragma unroll
  for (int i = 0; i < RowSlice<P>::kWidth; i += 2) {
    *reinterpret_cast<uint32_t*>(out + i) =
        Pack2<T>(slice.values[i] * inverse, slice.values[i + 1] * inverse);
  }
  if (args.params.lse_ln && lane == 0) {
    args.params.lse_ln[seq * args.params.num_q_heads + q_head] =
        LogSumExp(slice.row_max, slice.row_sum);
  }
}

// Partial states that a block adds: number i of `count` is partial begin + i * partials / count.
struct StateRange {
  int32_t begin, partials, count;

  __device__ __forceinline__ int32_t operator[](int32_t i) const {
    return begin + i * partials / count;
  }
};

// A member of the current task, with everything that the end of the task needs. It is read at the
// start of the task.
struct OpenMember {
  int32_t seq;
  int32_t partial;  // -1: the task is the sequence's only one
  int32_t states;   // partial states of the sequence; 0 if this block finds that others follow
  int32_t begin;    // the first of them
};

// Computes a row's state from the states of all warps if each took a share of the tokens, or else
// from the state of the warp that owns the row.
template <typename P>
__device__ __forceinline__ RowSlice<P> AddWarps(const SharedStates<P>& warps, int row,
                                                bool warps_share_rows) {
  const float* const mine = warps.outputs + threadIdx.x % 32 * RowSlice<P>::kWidth;
  RowSlice<P> slice;
  if (!warps_share_rows) {
    const int at = row / 16 * warps.warp_rows + row % 16;
    slice.row_max = warps.max_sum[at].x;
    slice.row_sum = warps.max_sum[at].y;
    slice.AddScaledVector(mine + at * P::kStateStride, 1);
    return slice;
  }
  float2 states[P::kWarps];
#pragma unroll
  for (int w = 0; w < P::kWarps; ++w) {
    states[w] = warps.max_sum[w * warps.warp_rows + row];
    slice.row_max = fmaxf(slice.row_max, states[w].x);
  }
#pragma unroll
  for (int w = 0; w < P::kWarps; ++w) {
    const float weight = Weight(states[w].x, slice.row_max);
    slice.AddScaledVector(mine + (w * warps.warp_rows + row) * P::kStateStride, weight);
    slice.row_sum += weight * states[w].y;
  }
  return slice;
}

// Writes a row's partial state.
template <typename P>
__device__ __forceinline__ void StoreState(const Arguments& args, int32_t partial, int kv_head,
                                           int group, int head, const RowSlice<P>& slice) {
  const int lane = threadIdx.x % 32;
  const int64_t index =
      (int64_t{partial} * args.params.layout.num_kv_heads + kv_head) * group + head;
  slice.StoreValues(args.outputs + index * P::kHeadDim + lane * RowSlice<P>::kWidth);
  if (lane == 0) args.max_sum[index] = {slice.row_max, slice.row_sum};
}

// Writes a row's partial state from the four lanes of a quad that hold it in accumulators of MMAs,
// the sum complete in each. values(n) returns the lane's two values of columns 8 n to 8 n + 7.
template <int kHeadDim, typename Values>
__device__ __forceinline__ void StoreQuadState(const Arguments& args, int32_t partial, int kv_head,
                                               int group, int head, float2 max_sum,
                                               const Values& values) {
  const int64_t index =
      (int64_t{partial} * args.params.layout.num_kv_heads + kv_head) * group + head;
  float* const to = args.outputs + index * kHeadDim + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) *reinterpret_cast<float2*>(to + n * 8) = values(n);
  if (threadIdx.x % 4 == 0) args.max_sum[index] = max_sum;
}

// Adds up the states of a range for up to kRows rows of a warp: first_row and every kWarps-th row
// after it. The loads of several rows are in flight together. If warps share a row, this one adds
// state number `share` and every `sharing`-th state after it.
template <typename P, int kRows>
__device__ __forceinline__ void SumStates(const Arguments& args, const StateRange& range, int share,
                                          int sharing, int kv_head, int group, int first_row,
                                          RowSlice<P> (&sums)[kRows]) {
  constexpr int kWidth = RowSlice<P>::kWidth;
  constexpr int kAtOnce = 32 / (kWidth * kRows);  // states of each row, in 32 registers
  const int lane = threadIdx.x % 32;
  // Rows past the last repeat the warp's first one, and their results are not written.
  const auto row = [&](int r) {
    return first_row + r * P::kWarps < group ? first_row + r * P::kWarps : first_row;
  };
  const auto index = [&](int32_t i, int r) {
    return (int64_t{range[i]} * args.params.layout.num_kv_heads + kv_head) * group + row(r);
  };
  for (int first = share; first < range.count; first += 32 * sharing) {
    // Each lane computes the weight of one of the next 32 states, which all lanes then add.
    const int own = first + lane * sharing;
    float2 states[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      states[r] = own < range.count ? __ldcg(&args.max_sum[index(own, r)]) : float2{-INFINITY, 0};
    }
    const int count = min(32, (range.count - first + sharing - 1) / sharing);
    float loaded[kRows][kAtOnce][kWidth];
    const auto load = [&](int i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int32_t state = first + min(i + j, count - 1) * sharing;
          LoadSlice<P>(loaded[r][j], args.outputs + index(state, r) * P::kHeadDim);
        }
      }
    };
    load(0);  // before the weights are known
    float weights[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float best = fmaxf(sums[r].row_max, WarpMax(states[r].x));
      sums[r].Rescale(best);
      weights[r] = Weight(states[r].x, best);
      sums[r].row_sum += WarpSum<32>(weights[r] * states[r].y);
    }
#pragma unroll 1
    for (int i = 0;;) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const float scale = __shfl_sync(0xffffffffu, weights[r], (i + j) % 32);
          if (i + j < count) sums[r].AddScaled(loaded[r][j], scale);
        }
      }
      i += kAtOnce;
      if (i >= count) break;
      load(i);
    }
  }
}

// Adds the states of a range in order. It writes the rows of `seq` or, if `seq` is negative,
// replaces the first state by the sum of all. A warp takes every fourth row or, with one or two
// rows, a share of the states.
template <typename P>
__device__ __forceinline__ void AddStates(const Arguments& args, const StateRange& range,
                                          int32_t seq, int kv_head, int group, float* scratch) {
  constexpr int kWidth = RowSlice<P>::kWidth;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto write = [&](int row, const RowSlice<P>& sum) {
    if (row >= group) return;
    if (seq >= 0) {
      WriteRow<P>(args, seq, kv_head * group + row, sum);
    } else {
      StoreState<P>(args, range.begin, kv_head, group, row, sum);
    }
  };
  if (group > P::kWarps) {
#pragma unroll 1
    for (int row = warp; row < group; row += 2 * P::kWarps) {
      RowSlice<P> sums[2];
      SumStates<P>(args, range, 0, 1, kv_head, group, row, sums);
      write(row, sums[0]);
      write(row + P::kWarps, sums[1]);
    }
    return;
  }
  const int sharing = group >= 3 ? 1 : P::kWarps / group;  // warps that share a row
  const int share = warp % sharing;
  for (int row = warp / sharing; row < group; row += P::kWarps / sharing) {
    RowSlice<P> sums[1];
    SumStates<P>(args, range, share, sharing, kv_head, group, row, sums);
    RowSlice<P>& sum = sums[0];
    if (sharing > 1) {  // every warp has one row, so all warps get here
      float* const mine = scratch + warp * P::kStateStride;
      sum.StoreValues(mine + lane * kWidth);
      if (lane == 0) {
        mine[P::kHeadDim] = sum.row_max;
        mine[P::kHeadDim + 1] = sum.row_sum;
      }
      __syncthreads();
      for (int w = 1; share == 0 && w < sharing; ++w) {
        const float* const other = mine + w * P::kStateStride;
        const float best = fmaxf(sum.row_max, other[P::kHeadDim]);
        sum.Rescale(best);
        const float weight = Weight(other[P::kHeadDim], best);
        sum.AddScaledVector(other + lane * kWidth, weight);
        sum.row_sum += weight * other[P::kHeadDim + 1];
      }
      __syncthreads();  // the next call may write there
    }
    if (share == 0) write(row, sum);
  }
}

// How the states of a member's sequence are added: all at once, or in bundles of about equal size
// whose sums are then added, each by the last block to arrive. One block alone would take 6 us per
// row for 264 states.
struct Bundles {
  int32_t begin, states;  // partials of the sequence
  int32_t count, own;     // number of bundles, and the one that holds the member's state

  template <bool kBundled>
  static __device__ __forceinline__ Bundles Of(const OpenMember& member, int group) {
    if constexpr (!kBundled) return {member.begin, member.states, 1, 0};
    const int32_t count = ChunkDecodeBundlesOf(member.states, group);
    return {member.begin, member.states, count,
            ((member.partial - member.begin + 1) * count - 1) / member.states};
  }
  __device__ __forceinline__ int32_t First(int32_t bundle) const { return bundle * states / count; }
  __device__ __forceinline__ int32_t Size(int32_t bundle) const {
    return First(bundle + 1) - First(bundle);
  }
  // The states of the member's bundle.
  __device__ __forceinline__ StateRange Own() const {
    return {begin + First(own), Size(own), Size(own)};
  }
  // The sums of all bundles. Each lies where the first state of its bundle was.
  __device__ __forceinline__ StateRange Sums() const { return {begin, states, count}; }
};

// Counts an arrival, which publishes what the block has written before its last barrier. The last
// of `expected` arrivals leaves the counter ready for the next launch; the block sees what the
// others have published after its next barrier.
__device__ __forceinline__ bool IsLast(uint32_t* counter, int32_t expected) {
  const bool last = ptx::AddAcquireRelease(counter, 1u) == static_cast<uint32_t>(expected) - 1;
  if (last) *counter = 0;
  return last;
}

// Publishes the partial states of a task, then adds the states of each sequence or bundle that this
// block completes.
template <typename P, bool kBundled>
__device__ void MergeCompleted(const Arguments& args, int member_count, int kv_head, int group,
                               OpenMember* members, float* scratch) {
  // The first counter counts complete bundles; the others count the states of each bundle.
  const auto counters_of = [&](const OpenMember& member) {
    return args.counters + (int64_t{member.seq} * args.params.layout.num_kv_heads + kv_head) *
                               (1 + kChunkDecodeBundles);
  };
  __syncthreads();
  if (threadIdx.x < member_count) {
    const OpenMember member = members[threadIdx.x];
    bool last = false;
    if (member.partial >= 0) {
      const Bundles bundles = Bundles::Of<kBundled>(member, group);
      last = IsLast(counters_of(member) + 1 + bundles.own, bundles.Size(bundles.own));
    }
    if (!last) members[threadIdx.x].states = 0;
  }
  __syncthreads();
  for (int m = 0; m < member_count; ++m) {
    const OpenMember member = members[m];
    if (member.states == 0) continue;
    const Bundles bundles = Bundles::Of<kBundled>(member, group);
    StateRange range = bundles.Own();
    bool all = bundles.count == 1;
    while (members[m].states > 0) {
      AddStates<P>(args, range, all ? member.seq : -1, kv_head, group, scratch);
      if (!kBundled || all) break;
      __syncthreads();
      if (threadIdx.x == 0 && !IsLast(counters_of(member), bundles.count)) members[m].states = 0;
      __syncthreads();
      range = bundles.Sums();
      all = true;
    }
  }
}

// Combines the warps' states of a finished task and writes its rows or partial states.
template <typename P, bool kBundled>
__device__ void FinishTask(const Arguments& args, const ChunkDecodeTask& task, int kv_head,
                           int group, OpenMember* members, const SharedStates<P>& warps,
                           float* scratch) {
  const int num_rows = task.member_count * group;
  for (int row = threadIdx.x / 32; row < num_rows; row += P::kWarps) {
    const RowSlice<P> slice = AddWarps<P>(warps, row, num_rows <= 16);
    const OpenMember& member = members[row / group];
    if (member.partial < 0) {
      WriteRow<P>(args, member.seq, kv_head * group + row % group, slice);
    } else {
      StoreState<P>(args, member.partial, kv_head, group, row % group, slice);
    }
  }
  if (task.member_count == 1 && members[0].partial < 0) return;
  MergeCompleted<P, kBundled>(args, task.member_count, kv_head, group, members, scratch);
}

}  // namespace tokline::chunk_decode
