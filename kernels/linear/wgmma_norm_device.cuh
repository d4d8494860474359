// RMSNorm of x on its way through shared memory, in Linear's kernel for sm_90a. The sums of squares
// come from the kernel that wrote x.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/linear/wgmma_shared_device.cuh"

namespace tokline {

template <typename Policy>
class SharedNorm {
 public:
  __device__ __forceinline__ SharedNorm(const WgmmaArgs& args, const WgmmaShare& share,
                                        const WgmmaShared<Policy>& shared)
      : params_(args.params),
        shared_(shared),
        weight_(shared.template Pointer<uint4>(shared.norm_weight)),
        is_on_(args.plan.norm_bytes > 0),
        first_k_(share.first_k),
        num_k_(share.num_k) {}

  __device__ __forceinline__ bool IsOn() const { return is_on_; }

  // Fetches the norm weight, which no earlier kernel writes.
  __device__ __forceinline__ void Prefetch() const {
    if (!is_on_) return;
    const auto in_features = static_cast<int>(params_.in_features);
    for (int k = 8 * threadIdx.x; k < num_k_; k += 8 * kWgmmaConsumers) {
      const T* const from = static_cast<const T*>(params_.norm_weight) + first_k_ + k;
      weight_[k / 8] = first_k_ + k < in_features ? *reinterpret_cast<const uint4*>(from) : uint4{};
    }
    Sync();
  }

  // Computes the factors of this thread's tokens from their sums of squares, once x is complete.
  __device__ __forceinline__ void MakeFactors() {
    const auto in_features = static_cast<int>(params_.in_features);
    const int count = (in_features + kWgmmaRows - 1) / kWgmmaRows;
    static_assert(kLinearSquares == 4);
    const auto* const squares = reinterpret_cast<const float4*>(params_.x_squares);
    float sums[kRows] = {};
#pragma unroll 1
    for (int j = Segment(); j < count; j += kSegments) {
      float4 four[kRows];  // all loads come first
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        four[i] = Token(i) < params_.num_tokens ? squares[Token(i) * count + j] : float4{};
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) sums[i] += four[i].x + four[i].y + (four[i].z + four[i].w);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float sum = WarpSum<kSegments>(sums[i]);
      factors_[i] = rsqrtf(sum / static_cast<float>(in_features) + params_.norm_eps);
    }
  }

  // Normalises this thread's part of a block of x, which has arrived in `stage`. The results for
  // rows past the last token do not matter: the sums of these rows are never read.
  __device__ __forceinline__ void Apply(int block, int stage) const {
    const uint4 weight = weight_[block * kSegments + Segment()];
    const uint32_t x = shared_.x.Stage(stage) + Segment() / 8 * Policy::kXPanel;
    uint4* rows[kRows];
    uint4 from[kRows];  // all loads come first
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows[i] = shared_.template Pointer<uint4>(x + SwizzledOffset<128>(Token(i), Segment() % 8));
      from[i] = *rows[i];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      *rows[i] = {
          Normalise(from[i].x, factors_[i], weight.x), Normalise(from[i].y, factors_[i], weight.y),
          Normalise(from[i].z, factors_[i], weight.z), Normalise(from[i].w, factors_[i], weight.w)};
    }
  }

  // Makes the normalised values visible to all consumers, and allows the copy engine to overwrite
  // them later.
  __device__ __forceinline__ void Sync() const {
    ptx::FenceProxyAsyncShared();
    ptx::NamedBarrierSync(2, kWgmmaConsumers);
  }

 private:
  using T = typename Policy::Type;
  static constexpr int kSegments = Policy::kBlockK / 8;  // of 16 bytes, in a token's row
  static constexpr int kTokensAtOnce = kWgmmaConsumers / kSegments;
  static constexpr int kRows = Policy::kTokens / kTokensAtOnce;  // of a thread
  static_assert(kSegments == 16 && kTokensAtOnce == 8);

  static __device__ __forceinline__ int Segment() { return threadIdx.x % kSegments; }
  static __device__ __forceinline__ int Token(int row) {
    return threadIdx.x / kSegments + row * kTokensAtOnce;
  }

  // Rounded before and after the multiplication with the weight, as norm does.
  static __device__ __forceinline__ uint32_t Normalise(uint32_t pair, float factor,
                                                       uint32_t weight) {
    const float2 x = Unpack2<T>(pair);
    return Multiply2<T>(Pack2<T>(x.x * factor, x.y * factor), weight);
  }

  const LinearParams& params_;
  const WgmmaShared<Policy>& shared_;
  uint4* const weight_;
  const bool is_on_;
  const int first_k_, num_k_;
  float factors_[kRows];
};

}  // namespace tokline
