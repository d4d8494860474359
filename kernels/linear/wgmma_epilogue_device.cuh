// The end of Linear's kernel for sm_90a: partial sums go to the block of the cluster that finishes
// their tokens, which adds them in the order of the splits, so that results are deterministic.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/rank_packets.cuh"
#include "kernels/device/silu.cuh"
#include "kernels/linear/wgmma_shared_device.cuh"

namespace tokline {

// Sums that are sent to the block of the cluster that finishes their tokens. A block finishes all
// rows of the cluster for 2^plan.pairs_log2 pairs of neighbouring tokens. Its sums are laid out as
// [split of K] [8 rows][row][token], with the distances of WgmmaSumsOfEight and WgmmaSumsPitch.
struct PartialSums {
  int pairs_log2;
  int row_eights;   // of the cluster
  int first_token;  // that the block finishes
  int num_tokens;   // that it finishes

  __device__ __forceinline__ PartialSums(const WgmmaArgs& args, const WgmmaShare& share)
      : pairs_log2(args.plan.pairs_log2),
        row_eights(args.plan.cluster / args.plan.splits * (kWgmmaRows / 8)),
        first_token(share.rank << (pairs_log2 + 1)),
        num_tokens(min(Tokens(), max(static_cast<int>(args.params.num_tokens) - first_token, 0))) {}

  // The most tokens that a block finishes.
  __device__ __forceinline__ int Tokens() const { return 2 << pairs_log2; }
  // In floats.
  __device__ __forceinline__ int Pitch() const { return WgmmaSumsPitch(Tokens()); }
  __device__ __forceinline__ int Eight() const { return WgmmaSumsOfEight(Tokens()); }
  __device__ __forceinline__ int At(int split, int row, int token) const {
    return (split * row_eights + row / 8) * Eight() + row % 8 * Pitch() + token;
  }
};

// The bytes that arrive at the block: pairs of tokens from every block of the cluster, including
// itself.
__device__ __forceinline__ int ArrivingBytes(const WgmmaPlan& plan, const PartialSums& layout) {
  return (layout.num_tokens + 1) / 2 * 8 * kWgmmaRows * plan.cluster;
}

// Hands the block's sums to the blocks that finish them.
template <typename Policy>
__device__ __forceinline__ void SendSums(const WgmmaArgs& args, const WgmmaShare& share,
                                         const PartialSums& layout,
                                         const WgmmaShared<Policy>& shared,
                                         const float (&sums)[Policy::kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const int all_pairs = (static_cast<int>(args.params.num_tokens) + 1) / 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = share.first_row + threadIdx.x / 32 * 16 + half * 8 + lane / 4;
    const uint32_t row_at = shared.partials + 4 * layout.At(share.split, row, 0);
#pragma unroll
    for (int piece = 0; piece < Policy::kTokens / 8; ++piece) {
      const int pair = piece * 4 + lane % 4, to = pair >> layout.pairs_log2;
      if (pair >= all_pairs) continue;
      const uint32_t at = row_at + 8 * (pair - (to << layout.pairs_log2));
      const float2 value{sums[piece * 4 + half * 2], sums[piece * 4 + half * 2 + 1]};
      if (args.plan.cluster > 1) {
        ptx::ClusterStoreAsync(ptx::ClusterAddress(at, to), value,
                               ptx::ClusterAddress(shared.arrived, to));
      } else {
        *shared.template Pointer<float2>(at) = value;
      }
    }
  }
}

// Adds the partial sums of the block's tokens and finishes kColumns outputs of a token at a time:
// 1, or 8 as one vector where the tensors are aligned for it.
template <typename Policy>
class WgmmaEpilogue {
 public:
  __device__ __forceinline__ WgmmaEpilogue(const WgmmaArgs& args, const WgmmaShare& share,
                                           const PartialSums& layout)
      : params_(args.params),
        layout_(layout),
        sender_(args.send),
        splits_(args.plan.splits),
        tile_(share.tile),
        columns_(params_.gated_silu ? kWgmmaRows / 2 : kWgmmaRows),
        first_column_(share.tile * columns_),
        left_(static_cast<int>(params_.out_features) - first_column_) {}

  // Locates the first outputs before the wait, so that it need not be done afterwards.
  __device__ __forceinline__ void Prefetch() { first_ = Locate(threadIdx.x); }

  // Loads the residual of the first outputs once it is complete.
  __device__ __forceinline__ void LoadFirst() {
    LoadResidual(first_);
    if constexpr (Policy::kSends) sender_.LookUpLaunch();
  }

  __device__ __forceinline__ void Finish(const float* partials) {
    const int items = columns_ / kColumns << (layout_.pairs_log2 + 1);
    Item item = first_;
#pragma unroll 1
    for (int index = threadIdx.x; index < items;) {
      float values[kColumns] = {};
      if (item.exists) FinishItem(item, partials, values);
      if constexpr (Policy::kSends) Send(item, values);
      index += kWgmmaConsumers;
      if (index >= items) break;
      item = Locate(index);
      LoadResidual(item);
    }
    if (params_.out_squares != nullptr) StoreSquares();
  }

 private:
  using T = typename Policy::Type;
  static constexpr int kColumns = Policy::kInRegisters ? 1 : 8;

  // kColumns outputs of a token.
  struct Item {
    bool exists = false;
    int column = 0;  // the first, in the tile
    int token = 0;
    int sums = 0;  // the place of the first column's sums, in floats
  };

  // Neighbouring lanes have neighbouring tokens, which lie in different banks, and all items of a
  // thread belong to one token.
  __device__ __forceinline__ Item Locate(int index) const {
    const int token = index & (layout_.Tokens() - 1);
    const int column = (index >> (layout_.pairs_log2 + 1)) * kColumns;
    const int row = params_.gated_silu ? column / 8 * 16 + column % 8 : column;
    return {.exists = token < layout_.num_tokens && column < min(columns_, left_),
            .column = column,
            .token = layout_.first_token + token,
            .sums = layout_.At(0, row, token)};
  }

  // Whether the item's columns of a tensor can be accessed as one vector.
  template <typename Element>
  __device__ __forceinline__ bool IsVector(const Item& item, const Element* tensor,
                                           int64_t stride) const {
    return kColumns == 8 && item.column + 8 <= left_ &&
           (reinterpret_cast<uintptr_t>(tensor) | stride * sizeof(Element)) % 16 == 0;
  }

  __device__ __forceinline__ void LoadResidual(const Item& item) {
    if (params_.residual == nullptr || !item.exists) return;
    const T* const residual = static_cast<const T*>(params_.residual);
    const T* const from =
        residual + item.token * params_.residual_stride + first_column_ + item.column;
    if constexpr (kColumns == 8) {
      if (IsVector(item, residual, params_.residual_stride)) {
        *reinterpret_cast<uint4*>(residual_) = *reinterpret_cast<const uint4*>(from);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (item.column + i < left_) residual_[i] = from[i];
    }
  }

  // Adds up the sums of kColumns rows of a token over the cluster.
  __device__ __forceinline__ void Add(const float* at, float (&sums)[kColumns]) const {
    constexpr int kMaxSplits = 8;
    const int stride = layout_.At(1, 0, 0), next_row = layout_.Pitch();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[i] = at[i * next_row];
    if constexpr (kColumns == 1) {
      float others[kMaxSplits];  // all loads before the first addition
#pragma unroll
      for (int split = 1; split < kMaxSplits; ++split) {
        others[split] = split < splits_ ? at[split * stride] : 0;
      }
#pragma unroll
      for (int split = 1; split < kMaxSplits; ++split) sums[0] += others[split];
    } else {
#pragma unroll 1
      for (int split = 1; split < splits_; ++split) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sums[i] += at[split * stride + i * next_row];
      }
    }
  }

  __device__ __forceinline__ void AddBias(int feature, float (&values)[kColumns],
                                          int column) const {
    if (params_.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (column + i < left_)
        values[i] += ToFloat(static_cast<const T*>(params_.bias)[feature + i]);
    }
  }

  // Sends outputs to the peers. The lanes of a warp have the same number of items.
  __device__ __forceinline__ void Send(const Item& item, const float (&values)[kColumns]) const {
    const int64_t tokens = params_.num_tokens, features = params_.out_features;
    if constexpr (kColumns == 8) {
      if (!item.exists) return;
      sender_.SendEight(tokens, features, item.token, first_column_ + item.column,
                        {Pack2<T>(values[0], values[1]), Pack2<T>(values[2], values[3]),
                         Pack2<T>(values[4], values[5]), Pack2<T>(values[6], values[7])});
    } else {
      const float next = __shfl_down_sync(0xffffffffu, values[0], layout_.Tokens());
      if (!item.exists || item.column % 2 != 0) return;
      sender_.SendPair(tokens, features, item.token, first_column_ + item.column,
                       Pack2<T>(values[0], next));
    }
  }

  __device__ __forceinline__ void FinishItem(const Item& item, const float* partials,
                                             float (&values)[kColumns]) {
    const int column = item.column, feature = first_column_ + column;
    const int64_t at = item.token * params_.out_stride + feature;
    Add(partials + item.sums, values);
    AddBias(feature, values, column);
    if (params_.out_f32) {
      float* const out = static_cast<float*>(params_.out);
      if constexpr (kColumns == 8) {
        if (IsVector(item, out, params_.out_stride)) {
          auto* const to = reinterpret_cast<float4*>(out + at);
          to[0] = {values[0], values[1], values[2], values[3]};
          to[1] = {values[4], values[5], values[6], values[7]};
          return;
        }
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (column + i < left_) out[at + i] = values[i];
      }
      return;
    }
    if (params_.gated_silu) {
      float ups[kColumns];
      Add(partials + item.sums + layout_.Eight(), ups);
      AddBias(feature + static_cast<int>(params_.out_features), ups, column);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        values[i] = Round<T>(Silu(Round<T>(values[i]))) * Round<T>(ups[i]);
      }
    } else if (params_.residual != nullptr) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[i] = Round<T>(values[i]) + ToFloat(residual_[i]);
    }
    if (params_.out_squares != nullptr) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float rounded = column + i < left_ ? Round<T>(values[i]) : 0;
        squares_ = fmaf(rounded, rounded, squares_);
      }
    }
    T* const out = static_cast<T*>(params_.out);
    if constexpr (kColumns == 8) {
      if (IsVector(item, out, params_.out_stride)) {
        *reinterpret_cast<uint4*>(out + at) = {
            Pack2<T>(values[0], values[1]), Pack2<T>(values[2], values[3]),
            Pack2<T>(values[4], values[5]), Pack2<T>(values[6], values[7])};
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (column + i < left_) out[at + i] = FromFloat<T>(values[i]);
    }
  }

  // Each warp adds the squares of its outputs of each token.
  __device__ __forceinline__ void StoreSquares() const {
    const int tokens = layout_.Tokens(), token = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = squares_;
#pragma unroll
    for (int distance = 16; distance > 1; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, sum, distance);
      if (distance >= tokens) sum += other;
    }
    if (token >= layout_.num_tokens) return;
    const int tiles = (static_cast<int>(params_.out_features) + kWgmmaRows - 1) / kWgmmaRows;
    params_.out_squares[((layout_.first_token + token) * tiles + tile_) * kLinearSquares + warp] =
        sum;
  }

  const LinearParams& params_;
  const PartialSums& layout_;
  PartialSender sender_;
  const int splits_, tile_;
  const int columns_;              // of the tile
  const int first_column_, left_;  // first column of the tile in the output, and the number of
                                   // columns from there on
  Item first_;
  alignas(16) T residual_[kColumns] = {};
  float squares_ = 0;  // of the outputs that the thread has finished
};

}  // namespace tokline
