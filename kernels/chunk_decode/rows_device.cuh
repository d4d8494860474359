// The arithmetic of chunk_decode: query rows as fragments of MMAs, and their online softmax.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/ptx/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/softmax_row.cuh"
#include "kernels/device/swizzle.cuh"

namespace tokline::chunk_decode {

// A member of a task by its number.
__device__ __forceinline__ ChunkDecodeMember Member(const Arguments& args,
                                                    const ChunkDecodeTask& task, int m) {
  return m == 0 ? task.first_member : args.params.plan.members[task.member_begin + m];
}

// The A fragments of 16 of a task's `num_rows` query rows. Rows past the last repeat it, so that no
// lane waits for the loads of others; their results are not stored. Row r belongs to member_of(r /
// group).
template <typename P>
struct Query {
  uint32_t words[P::kSteps][4];

  static __device__ __forceinline__ int Row(int num_rows, int row_tile, int half) {
    return min(row_tile * 16 + half * 8 + static_cast<int>(threadIdx.x % 32 / 4), num_rows - 1);
  }

  template <typename MemberOf>
  __device__ __forceinline__ void Load(const Arguments& args, int num_rows, int group, int row_tile,
                                       int kv_head, const MemberOf& member_of) {
    using T = typename P::T;
    const bool one_half = num_rows <= 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && one_half) {
#pragma unroll
        for (int s = 0; s < P::kSteps; ++s) {
          words[s][1] = words[s][0];
          words[s][3] = words[s][2];
        }
        break;
      }
      const int row = Row(num_rows, row_tile, half);
      const int32_t seq = member_of(row / group).seq;
      const T* q = static_cast<const T*>(args.params.q) + seq * args.params.q_stride +
                   int64_t{kv_head * group + row % group} * P::kHeadDim + threadIdx.x % 4 * 2;
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        words[s][half] = *reinterpret_cast<const uint32_t*>(q + s * 16);
        words[s][half + 2] = *reinterpret_cast<const uint32_t*>(q + s * 16 + 8);
      }
    }
  }

  // The same for a task with one member, whose rows lie in shared memory.
  __device__ __forceinline__ void LoadShared(uint32_t rows_address, int group) {
    const int lane = threadIdx.x % 32;
    const int row = min(lane % 16, group - 1);
#pragma unroll
    for (int s = 0; s < P::kSteps; ++s) {
      ptx::LdMatrixX4(words[s],
                      rows_address + SwizzledOffset<P::kRowBytes>(row, s * 2 + lane / 16));
    }
  }

  // Rotates each row by minus its member's shift.
  template <typename MemberOf>
  __device__ __forceinline__ void Rotate(const Arguments& args, int num_rows, int group,
                                         int row_tile, const MemberOf& member_of) {
    using T = typename P::T;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t shift = member_of(Row(num_rows, row_tile, half) / group).shift;
      if (shift == 0) continue;
      // Fragment (step, half of the step) holds dims s * 16 + h * 8 + 2t and the next one. The same
      // thread holds their RoPE partners, which are head_dim / 2 further.
      const float2* angles = reinterpret_cast<const float2*>(args.params.rope_cos_sin) +
                             int64_t{abs(shift)} * (P::kHeadDim / 2) + threadIdx.x % 4 * 2;
      const float sign = shift > 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int s = 0; s < P::kSteps / 2; ++s) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t& low = words[s][half + 2 * h];
          uint32_t& high = words[s + P::kSteps / 2][half + 2 * h];
          const float2 a = Unpack2<T>(low), b = Unpack2<T>(high);
          const float2 first = angles[s * 16 + h * 8], second = angles[s * 16 + h * 8 + 1];
          low = Pack2<T>(a.x * first.x - b.x * sign * first.y,
                         a.y * second.x - b.y * sign * second.y);
          high = Pack2<T>(b.x * first.x + a.x * sign * first.y,
                          b.y * second.x + a.y * sign * second.y);
        }
      }
    }
  }
};

// Online softmax of one warp over 16 rows: row lane/4 in [0], row lane/4 + 8 in [1].
template <typename P>
struct RowState {
  // ReferenceOf(largest scaled score).
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0, 0};  // this lane's columns only
  float output[P::kHeadDim / 8][4] = {};

  // Adds 16 tokens of a tile; only the first `valid` (>= 1) count. `keys_address` is the address of
  // the first one's key.
  __device__ __forceinline__ void Add(const Query<P>& query, uint32_t keys_address, int valid,
                                      float scale_log2) {
    using T = typename P::T;
    const uint32_t lane = ptx::HereAndNow(threadIdx.x) % 32;
    // Matrices are loaded in fours: rows 0 to 7 and 8 to 15 of a segment, then of the next one.
    const uint32_t first_matrix =
        keys_address + SwizzledOffset<P::kRowBytes>(lane / 8 % 2 * 8 + lane % 8, lane / 16);
    float scores[2][4] = {};
    {
      float odd_scores[2][4] = {};  // of odd steps, which gives four independent chains of MMAs
#pragma unroll
      for (int s = 0; s < P::kSteps; ++s) {
        uint32_t keys[4];
        ptx::LdMatrixX4(keys, SwizzledSegment(first_matrix, s * 2));
        ptx::MmaM16N8K16<T>(s % 2 ? odd_scores[0] : scores[0], query.words[s], keys[0], keys[2]);
        ptx::MmaM16N8K16<T>(s % 2 ? odd_scores[1] : scores[1], query.words[s], keys[1], keys[3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[n][c] += odd_scores[n][c];
      }
    }
    uint32_t probabilities[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = LargestScoreOf<T>(row_max[half]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[n][half * 2 + c];
          const int column = n * 8 + static_cast<int>(lane) % 4 * 2 + c;
          score = column < valid ? score * scale_log2 : -INFINITY;
          best = fmaxf(best, score);
        }
      }
      best = ReferenceOf<T>(WarpMax<4>(best));
      // A row whose scores are all -inf (possible with infinite inputs) must not give NaN.
      const float base = best == -INFINITY ? 0.0f : best;
      const float rescale = ptx::Exp2(row_max[half] - base);
      row_max[half] = best;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float p0 = WeightOf<T>(scores[n][half * 2] - base);
        const float p1 = WeightOf<T>(scores[n][half * 2 + 1] - base);
        sum += p0 + p1;
        probabilities[n * 2 + half] = Pack2<T>(p0, p1);
      }
      row_sum[half] = row_sum[half] * rescale + sum;
#pragma unroll
      for (int n = 0; n < P::kHeadDim / 8; ++n) {
        output[n][half * 2] *= rescale;
        output[n][half * 2 + 1] *= rescale;
      }
    }
#pragma unroll
    for (int n = 0; n < P::kHeadDim / 16; ++n) {
      uint32_t values[4];
      ptx::LdMatrixX4Trans(values, SwizzledSegment(first_matrix, n * 2) + P::kTileBytes);
      ptx::MmaM16N8K16<T>(output[n * 2], probabilities, values[0], values[1]);
      ptx::MmaM16N8K16<T>(output[n * 2 + 1], probabilities, values[2], values[3]);
    }
  }

  // Writes the first `rows` rows to shared memory: outputs [rows][kStateStride], (max, sum) [rows].
  __device__ __forceinline__ void Store(float* outputs, float2* max_sum, int rows) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      const float sum = WarpSum<4>(row_sum[half]);
      if (row >= rows) continue;
      if (lane % 4 == 0) max_sum[row] = {row_max[half], sum};
#pragma unroll
      for (int n = 0; n < P::kHeadDim / 8; ++n) {
        *reinterpret_cast<float2*>(outputs + row * P::kStateStride + n * 8 + (lane % 4) * 2) = {
            output[n][half * 2], output[n][half * 2 + 1]};
      }
    }
  }
};

}  // namespace tokline::chunk_decode
