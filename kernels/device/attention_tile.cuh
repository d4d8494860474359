// Online softmax of 64 query rows over tiles of K and V in shared memory, by the wgmma of a
// warpgroup (sm_90a).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/math.cuh"
#include "kernels/device/ptx/wgmma.cuh"
#include "kernels/device/softmax_row.cuh"

namespace tokline {

// The launch bound of a kernel with one warpgroup of producers and two of consumers. Where wgmma
// cannot be compiled, such a kernel is empty, and the small bound makes its launch fail.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kAttentionLaunchBound = 384;
#else
inline constexpr int kAttentionLaunchBound = 32;
#endif

// A warpgroup's 64 rows. Each warp holds 16 of them in accumulator fragments (ptx/wgmma.cuh).
// Policy has the type T, kHeadDim, kKvTokens, and how the rows of Q and of a KV tile are placed in
// shared memory: QueryPlacement and KvPlacement, which are SwizzledPanels.
template <typename Policy>
struct AttentionTile {
  using T = typename Policy::T;
  static constexpr int kHeadDim = Policy::kHeadDim;
  static constexpr int kScores = Policy::kKvTokens / 2;  // accumulators per lane
  static constexpr int kOut = kHeadDim / 2;

  float scores[kScores];
  float out[kOut] = {};
  uint32_t weights[Policy::kKvTokens / 16][4];
  RowState rows[2];
  float offset[2];  // of the exponents
  float correction[2];

  // Issues scores = Q K^T.
  __device__ __forceinline__ void IssueScores(uint64_t q, uint64_t k) {
    ptx::PinRegisters(scores);
    ptx::WgmmaFence();
#pragma unroll
    for (int depth = 0; depth < kHeadDim / 16; ++depth) {
      // 16 columns are 32 bytes of a row in a panel.
      const uint32_t q_step = depth / 4 * Policy::QueryPlacement::kPanelBytes + depth % 4 * 32;
      const uint32_t k_step = depth / 4 * Policy::KvPlacement::kPanelBytes + depth % 4 * 32;
      ptx::WgmmaK16<T>(scores, q + (q_step >> 4), k + (k_step >> 4), depth != 0);
    }
    ptx::WgmmaCommit();
  }

  // Issues out += P V for the tile's first kTokens tokens; the weights of all later ones are 0.
  template <int kTokens = Policy::kKvTokens>
  __device__ __forceinline__ void IssueValues(uint64_t v) {
    ptx::PinRegisters(out);
    ptx::WgmmaFence();
#pragma unroll
    for (int depth = 0; depth < kTokens / 16; ++depth) {
      const uint64_t rows16 = v + (depth * 16 * Policy::KvPlacement::kRowPitch >> 4);
      ptx::WgmmaK16<T>(out, weights[depth], rows16);
    }
    ptx::WgmmaCommit();
  }

  // Sets the scores of tokens that a row does not see to -inf. `visible` holds the number of the
  // tile's tokens that each of the lane's rows sees.
  __device__ __forceinline__ void Mask(const int32_t (&visible)[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (column >= visible[i / 2 % 2]) scores[i] = -INFINITY;
    }
  }

  // Updates the maxima with the scores. The two rows are interleaved in two chains each, so that
  // the latency of one chain is hidden by the others.
  __device__ __forceinline__ void UpdateMaxima(float scale_log2) {
    float max[2][2] = {{rows[0].max, rows[1].max}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      float& chain = max[i / 4 % 2][i / 2 % 2];
      chain = fmaxf(chain, fmaxf(scores[i], scores[i + 1]));
    }
    float row_max[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) row_max[half] = fmaxf(max[0][half], max[1][half]);
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_max[half] = fmaxf(row_max[half], __shfl_xor_sync(0xffffffffu, row_max[half], lanes));
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      offset[half] = FiniteOffset<T>(row_max[half], scale_log2);
      correction[half] = ptx::Exp2(ExponentOffset<T>(rows[half].max, scale_log2) - offset[half]);
      rows[half].max = row_max[half];
      rows[half].sum *= correction[half];
    }
  }

  // Turns scores kBegin to kEnd - 1 into weights, which stay in fp32, and adds them to the sums.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void Exponentiate(float scale_log2) {
    float sum[2] = {};
#pragma unroll
    for (int i = kBegin; i < kEnd; i += 2) {
      const int half = i / 2 % 2;
      scores[i] = ptx::Exp2(fmaf(scores[i], scale_log2, -offset[half]));
      scores[i + 1] = ptx::Exp2(fmaf(scores[i + 1], scale_log2, -offset[half]));
      sum[half] += scores[i] + scores[i + 1];
    }
    rows[0].sum += sum[0];
    rows[1].sum += sum[1];
  }

  // Without this, ptxas would move the softmax below the wait that follows, where it no longer
  // overlaps P V. A branch that depends on the result, and is never taken, keeps the softmax here.
  __device__ __forceinline__ void KeepSoftmaxHere() const {
    if (rows[0].sum + rows[1].sum < 0) __nanosleep(0);
  }

  // Scales `out` to the new maxima while no wgmma uses it. It does so unconditionally: a factor of
  // 1 changes nothing, and between exponentials the multiplications take no extra time.
  __device__ __forceinline__ void Rescale() {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] *= correction[i / 2 % 2];
  }

  // Rounds the weights for P V. No wgmma may still be using the previous ones.
  __device__ __forceinline__ void RoundWeights() {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      weights[i / 8][i / 2 % 4] = Pack2<T>(scores[i], scores[i + 1]);
    }
  }
};

}  // namespace tokline
