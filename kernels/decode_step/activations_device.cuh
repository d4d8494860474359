// How a warp gets its share of x: from the words that other blocks publish.
#pragma once

#include "kernels/decode_step/products_device.cuh"
#include "kernels/device/reduce.cuh"

namespace tokline::decode_step {

// Loads x into shared memory and normalises it if it has a norm. Each warp loads the elements that
// it multiplies itself. The lanes of a warp are divided among the tokens.
template <typename P>
class Activations {
 public:
  using T = typename P::T;

  __device__ __forceinline__ Activations(const Consumer& consumer, Shared& shared, uint32_t memory,
                                         int tokens, int64_t features)
      : token(consumer.lane / kLanes),
        active(token < tokens),
        factor(memory + consumer.row * DecodeStepXPitch(features) + consumer.warp * (2 * kWarpK) +
               consumer.column * 16),
        shared_(shared),
        first_(consumer.lane % kLanes),
        element_(first_ / kBlockVectors * kDecodeStepBlockK + consumer.warp * kWarpK +
                 first_ % kBlockVectors * 8),
        store_(memory + token * DecodeStepXPitch(features) + 2 * element_) {}

  int token;        // whose x this lane loads
  bool active;      // whether there is such a token
  uint32_t factor;  // the address of the lane's first 16 bytes of x as a factor

  // `words` is the row of x of the lane's token, or null for zeros. Words that are not `published`
  // come from an earlier kernel.
  __device__ __forceinline__ void Load(Consumer& consumer, const Projection& projection,
                                       const uint32_t* words) const {
    const int vectors = projection.Vectors();
    const uint32_t* const from = words + element_ / 2;
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int first = 0; first < vectors; first += kAtOnce * kLanes) {
      uint4 values[kAtOnce];
      Poll(
          values, from + Offset(first / kLanes) / 2, true, [](int i) { return Offset(i) / 2; },
          [&](int i) { return active && first_ + first + i * kLanes < vectors; });
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (active && first_ + first + i * kLanes < vectors) {
          StoreShared16(store_ + 2 * (Offset(first / kLanes) + Offset(i)), values[i]);
        }
      }
    }
    SyncConsumers();  // protects the sums of the previous projection
  }

  __device__ __forceinline__ void LoadNormalised(Consumer& consumer, const Projection& projection,
                                                 const uint32_t* words, bool published,
                                                 const void* norm_weight, float eps) const {
    const int vectors = projection.Vectors();
    const auto valid = [&](int i) { return active && first_ + i * kLanes < vectors; };
    uint4 values[kMaxVectors];
    Poll(
        values, words + element_ / 2, published, [](int i) { return Offset(i) / 2; },
        [&](int i) { return valid(i) && words != nullptr; });
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      if (i > 0 && i * kLanes >= vectors) break;
      squares += Squares(values[i]);
    }
    squares = WarpSum<kLanes>(squares);
    if (first_ == 0) shared_.squares[token][consumer.warp] = squares;
    const auto* const weights =
        reinterpret_cast<const uint4*>(static_cast<const char*>(norm_weight) + 2 * element_);
    uint4 weight{};
    if (valid(0)) weight = __ldg(weights);
    SyncConsumers();
    squares = 0;
#pragma unroll
    for (int i = 0; i < kWarps; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(&shared_.squares[token][i]);
      squares += (part.x + part.y) + (part.z + part.w);
    }
    const float scale = rsqrtf(squares * (1.0f / static_cast<float>(projection.in_features)) + eps);
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      if (i > 0 && i * kLanes >= vectors) break;
      if (!valid(i)) continue;
      if (i > 0) weight = __ldg(weights + Offset(i) / 8);
      // Rounded before it is multiplied by the weight, as the models do.
      const auto normalised = [scale](uint32_t word, uint32_t by) {
        const float2 pair = Unpack2<T>(word);
        return Multiply2<T>(Pack2<T>(pair.x * scale, pair.y * scale), by);
      };
      const uint4& v = values[i];
      StoreShared16(store_ + 2 * Offset(i), {normalised(v.x, weight.x), normalised(v.y, weight.y),
                                             normalised(v.z, weight.z), normalised(v.w, weight.w)});
    }
    __syncwarp();
  }

 private:
  static constexpr int kLanes = 32 / P::kTokens;  // per token
  static constexpr int kMaxVectors =
      kDecodeStepMaxHidden / kDecodeStepBlockK * kBlockVectors / kLanes;

  // The distance from the lane's first vector to its i-th, in elements.
  __device__ __forceinline__ static constexpr int Offset(int i) {
    constexpr int kTurns = kBlockVectors / kLanes;  // of the lanes in a block; 0: less than one
    return kTurns == 0
               ? i * (kLanes / kBlockVectors) * kDecodeStepBlockK
               : i / (kTurns + !kTurns) * kDecodeStepBlockK + i % (kTurns + !kTurns) * kLanes * 8;
  }
  __device__ __forceinline__ static float Squares(uint4 v) {
    const float2 a = Unpack2<T>(v.x), b = Unpack2<T>(v.y), c = Unpack2<T>(v.z), d = Unpack2<T>(v.w);
    return (a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y) +
           (c.x * c.x + c.y * c.y + d.x * d.x + d.y * d.y);
  }

  Shared& shared_;
  int first_;    // vector of the lane
  int element_;  // where it begins
  uint32_t store_;
};

}  // namespace tokline::decode_step
