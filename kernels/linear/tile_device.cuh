// Linear for up to 256 tokens on sm_90a: tokens are the rows of wgmma, weight rows its columns.
//
// Grid: a tile of weight rows and one of tokens belong to a cluster of `splits` blocks, each of
//   which multiplies its share of K. If possible, the plan has at most as many blocks as SMs: with
//   64 tokens or more a block's x takes as many bytes as its weights, so few large tiles beat many
//   small ones, and a second wave costs as much as the first. Up to 128 tokens are one tile. The
//   tiles of more tokens have equally many: the last one begins so early that its boxes of x end
//   with the last token, and does not finish the tokens that it shares with the one before.
// Block: two warpgroups, which share the weight rows (64 tokens) or the tokens (128), and a
//   producer warp whose first lane issues copies.
// Shared memory: a ring whose stages hold 64 k of the tile's tokens, then of its weights, with the
//   128-byte swizzle. A warpgroup multiplies 64 rows in any case: those after the last token are
//   what follows in the stage, mostly weights, and their sums are never read. Once the ring has
//   been read, the sums take its place.
// Dependent launch: the first weights are on their way before the wait.
// Merge: each block of the cluster finishes some of the tokens. Every block lays out its sums in
//   its own shared memory and sends each other block the sums of that block's tokens, in one copy.
//   They are added in the order of the splits.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/copy_ring.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cache_policy.cuh"
#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/rank_packets.cuh"
#include "kernels/device/silu.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/stage_products_device.cuh"
#include "kernels/linear/tile_plan.h"

namespace tokline {

// Maps: `weight` {64, rows, K / 64} with boxes of kRows rows, or kPiece rows if gated; `x` {64,
// tokens, K / 64}.
struct TileArgs {
  LinearParams params;
  TilePlan plan;
  CUtensorMap weight, x;
  PeerBuffers send;  // of one rank if nothing is sent
};

// Whether outputs are sent is compiled in, because the test for it makes all launches 1 % slower.
template <typename T, int kTokensValue, int kColumnsValue, bool kSendsValue>
struct TilePolicy {
  using Type = T;
  static constexpr bool kSends = kSendsValue;
  static constexpr int kTokens = kTokensValue;
  static constexpr int kColumns = kColumnsValue;  // of a warpgroup's wgmma
  static constexpr int kRows = kTokens == 64 ? 2 * kColumns : kColumns;
  // With gated_silu, pieces of gate rows and of their up rows alternate, so that a warpgroup has
  // both.
  static constexpr int kPiece = kColumns / 2, kPieces = kRows / kPiece;
  static constexpr int kConsumers = 128 * kTileConsumerGroups;
  static constexpr int kRowBytes = 2 * kTileBlockK;
  static constexpr int kWeightBytes = kRows * kRowBytes;
  static constexpr int kPitch = kRows + kTileSumsPadding;  // floats between tokens' sums
};

// A block's part of the work.
struct TileShare {
  int rank, tile;
  int first_token, first_own_token;  // the first of its tokens, and the first that it finishes
  int first_block, blocks;           // of K

  __device__ __forceinline__ TileShare(const TilePlan& plan, int num_tokens)
      : rank(static_cast<int>(blockIdx.x) % plan.splits),
        tile(static_cast<int>(blockIdx.x) / plan.splits / plan.token_tiles),
        first_own_token(static_cast<int>(blockIdx.x) / plan.splits % plan.token_tiles *
                        plan.tokens),
        first_block(rank * plan.k_blocks / plan.splits),
        blocks((rank + 1) * plan.k_blocks / plan.splits - first_block) {
    first_token = min(first_own_token, num_tokens - plan.tokens);
  }
};

// The producer's only active lane.
template <typename Policy>
__device__ __forceinline__ void ProduceTile(const TileArgs& args, const TileShare& share,
                                            const CopyRing& ring) {
  const int x_bytes = args.plan.tokens * Policy::kRowBytes;
  const int weights_at = args.plan.x_rows * Policy::kRowBytes;
  const uint64_t once = ptx::EvictFirstPolicy();
  const auto load_weight = [&](int block, int stage) {
    ptx::MbarrierArriveExpect(ring.Full(stage), Policy::kWeightBytes + x_bytes);
    if (!args.params.gated_silu) {
      ptx::TensorCopyToShared(ring.Stage(stage) + weights_at, &args.weight, 0,
                              share.tile * Policy::kRows, share.first_block + block,
                              ring.Full(stage), once);
      return;
    }
#pragma unroll
    for (int piece = 0; piece < Policy::kPieces; ++piece) {
      int row = share.tile * (Policy::kRows / 2) + piece / 2 * Policy::kPiece;
      if (piece % 2 == 1) row += static_cast<int>(args.params.out_features);
      ptx::TensorCopyToShared(
          ring.Stage(stage) + weights_at + piece * Policy::kPiece * Policy::kRowBytes, &args.weight,
          0, row, share.first_block + block, ring.Full(stage), once);
    }
  };
  const auto load_x = [&](int block, int stage) {
    ptx::TensorCopyToShared(ring.Stage(stage), &args.x, 0, share.first_token,
                            share.first_block + block, ring.Full(stage));
  };
  const int early = min(share.blocks, ring.stages);
  for (int block = 0; block < early; ++block) load_weight(block, block);
  if (!Policy::kSends) ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  if (Policy::kSends) ptx::GridDependencyLaunch();
  for (int block = 0; block < early; ++block) load_x(block, block);
  RingPosition at{ring.stages};
  for (int block = early; block < share.blocks; ++block) {
    ptx::MbarrierWait(ring.Empty(at.stage), at.phase);
    load_weight(block, at.stage);
    load_x(block, at.stage);
    at.Advance();
  }
}

// Computes the warpgroup's sums over the block's share of K. They are laid out as in ptx/wgmma.cuh,
// with tokens as rows and weight rows as columns.
template <typename Policy>
__device__ __forceinline__ void MultiplyTile(const TilePlan& plan, const TileShare& share,
                                             const CopyRing& ring,
                                             float (&sums)[Policy::kColumns / 2]) {
  const int group = threadIdx.x / 128;
  const int first_token = Policy::kTokens == 64 ? 0 : group * 64;
  const int first_row = Policy::kTokens == 64 ? group * Policy::kColumns : 0;
  RingPosition at{ring.stages};
  MultiplyStages<typename Policy::Type>(share.blocks, ring, first_token * Policy::kRowBytes,
                                        (plan.x_rows + first_row) * Policy::kRowBytes, at, sums);
}

// Lays the sums out as [token][weight row] in the block's shared memory.
template <typename Policy>
__device__ __forceinline__ void StoreTileSums(const float (&sums)[Policy::kColumns / 2],
                                              float* to) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int first_token = Policy::kTokens == 64 ? 0 : group * 64;
  const int first_row = Policy::kTokens == 64 ? group * Policy::kColumns : 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* const row = to + (first_token + warp * 16 + half * 8 + lane / 4) * Policy::kPitch +
                       first_row + lane % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < Policy::kColumns / 8; ++eight) {
      *reinterpret_cast<float2*>(row + eight * 8) = {sums[eight * 4 + half * 2],
                                                     sums[eight * 4 + half * 2 + 1]};
    }
  }
}

// The shared memory of the merge, in place of the ring: a block's own sums of all tokens, then each
// other block's sums of the tokens that this one finishes.
template <typename Policy>
struct TileMerge {
  static constexpr int kTokenBytes = 4 * Policy::kPitch;

  uint32_t own, barrier;  // addresses of the shared window
  int rank, splits;
  int tokens;  // that a block finishes

  __device__ __forceinline__ int Bytes() const { return tokens * kTokenBytes; }
  // The place of the sums of split `from` in block `to`, which finishes their tokens.
  __device__ __forceinline__ uint32_t Sums(int from, int to) const {
    return from == to ? own + to * Bytes()
                      : own + Policy::kTokens * kTokenBytes + (from - (from > to)) * Bytes();
  }
  // One thread calls this, before the other blocks know that they may send.
  __device__ __forceinline__ void Init() const {
    ptx::MbarrierInit(barrier, 1);
    ptx::MbarrierArriveExpect(barrier, (splits - 1) * Bytes());
  }
  // Sends block `to` the sums of its tokens. One thread calls this.
  __device__ __forceinline__ void Send(int to) const {
    ptx::BulkCopyToCluster(ptx::ClusterAddress(Sums(rank, to), to), own + to * Bytes(), Bytes(),
                           ptx::ClusterAddress(barrier, to));
  }
};

// Adds the splits' sums of the block's tokens and finishes eight outputs of a token at a time.
template <typename Policy>
class TileEpilogue {
 public:
  __device__ __forceinline__ TileEpilogue(const TileArgs& args, const TileShare& share,
                                          const TileMerge<Policy>& merge,
                                          const PartialSender& sender, const float* sums)
      : params_(args.params),
        merge_(merge),
        sender_(sender),
        sums_(sums),
        share_(share),
        tokens_(args.plan.tokens),
        first_feature_(share.tile * (params_.gated_silu ? Policy::kRows / 2 : Policy::kRows)) {}

  __device__ __forceinline__ void Finish() const {
    const int first = merge_.rank * merge_.tokens;
    const int eights = params_.gated_silu ? Policy::kRows / 16 : Policy::kRows / 8;
    const int count = min(merge_.tokens, tokens_ - first) * eights;
#pragma unroll 1
    for (int item = threadIdx.x; item < count; item += Policy::kConsumers) {
      FinishEight(item / eights, item % eights * 8);
    }
  }

 private:
  using T = typename Policy::Type;

  // Adds up the sums of eight weight rows over the splits, for one of the block's tokens.
  __device__ __forceinline__ void Add(int token, int row, float (&sums)[8]) const {
    constexpr int kMaxSplits = 4;
    const auto of_split = [&](int split) {
      return sums_ + (merge_.Sums(split, merge_.rank) - merge_.own) / 4 + token * Policy::kPitch +
             row;
    };
    float others[kMaxSplits - 1][8];  // all loads come first
    Load(of_split(0), sums);
#pragma unroll
    for (int split = 1; split < kMaxSplits; ++split) {
      if (split < merge_.splits) Load(of_split(split), others[split - 1]);
    }
#pragma unroll
    for (int split = 1; split < kMaxSplits; ++split) {
      if (split >= merge_.splits) break;
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += others[split - 1][i];
    }
  }

  static __device__ __forceinline__ void Load(const float* from, float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  }

  template <typename Element>
  __device__ __forceinline__ bool IsVector(const Element* tensor, int64_t stride, int left) const {
    return left >= 8 && (reinterpret_cast<uintptr_t>(tensor) | stride * sizeof(Element)) % 16 == 0;
  }

  __device__ __forceinline__ void AddBias(int64_t feature, int left, float (&values)[8]) const {
    if (params_.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < left) values[i] += ToFloat(static_cast<const T*>(params_.bias)[feature + i]);
    }
  }

  __device__ __forceinline__ void AddResidual(int64_t token, int64_t feature, int left,
                                              float (&values)[8]) const {
    const T* const residual = static_cast<const T*>(params_.residual);
    const T* const from = residual + token * params_.residual_stride + feature;
    if (IsVector(residual, params_.residual_stride, left)) {
      const uint4 row = *reinterpret_cast<const uint4*>(from);
      const uint32_t pairs[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float2 rounded = Round2<T>(values[i], values[i + 1]);
        const float2 old = Unpack2<T>(pairs[i / 2]);
        values[i] = rounded.x + old.x;
        values[i + 1] = rounded.y + old.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < left) values[i] = Round<T>(values[i]) + ToFloat(from[i]);
      }
    }
  }

  // `column` counts the tile's outputs. The gate row of column c is c + c / kPiece * kPiece, and
  // its up row is kPiece further.
  __device__ __forceinline__ void FinishEight(int of_block, int column) const {
    const int token = share_.first_token + merge_.rank * merge_.tokens + of_block;
    if (token < share_.first_own_token) return;
    const int64_t feature = first_feature_ + column;
    const int left = static_cast<int>(params_.out_features - feature);
    if (left <= 0) return;
    float values[8];
    if (params_.gated_silu) {
      const int gate = column + column / Policy::kPiece * Policy::kPiece;
      float ups[8];
      Add(of_block, gate, values);
      Add(of_block, gate + Policy::kPiece, ups);
      AddBias(feature, left, values);
      AddBias(feature + params_.out_features, left, ups);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float2 gates = Round2<T>(values[i], values[i + 1]);
        const float2 act = Round2<T>(Silu(gates.x), Silu(gates.y));
        const float2 up = Round2<T>(ups[i], ups[i + 1]);
        values[i] = act.x * up.x;
        values[i + 1] = act.y * up.y;
      }
    } else {
      Add(of_block, column, values);
      AddBias(feature, left, values);
      if (params_.residual != nullptr) AddResidual(token, feature, left, values);
    }
    if constexpr (Policy::kSends) {
      sender_.SendEight(params_.num_tokens, params_.out_features, token,
                        static_cast<int32_t>(feature), Pack(values));
    }
    if (params_.out_f32) {
      Store(static_cast<float*>(params_.out), token, feature, left, values);
    } else {
      Store(static_cast<T*>(params_.out), token, feature, left, values);
    }
  }

  static __device__ __forceinline__ uint4 Pack(const float (&values)[8]) {
    return {Pack2<T>(values[0], values[1]), Pack2<T>(values[2], values[3]),
            Pack2<T>(values[4], values[5]), Pack2<T>(values[6], values[7])};
  }

  template <typename Element>
  __device__ __forceinline__ void Store(Element* out, int64_t token, int64_t feature, int left,
                                        const float (&values)[8]) const {
    Element* const to = out + token * params_.out_stride + feature;
    if (IsVector(out, params_.out_stride, left)) {
      auto* const vector = reinterpret_cast<uint4*>(to);
      if constexpr (sizeof(Element) == 4) {
        *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
        *reinterpret_cast<float4*>(to + 4) = {values[4], values[5], values[6], values[7]};
      } else {
        *vector = Pack(values);
      }
      return;
    }
    for (int i = 0; i < min(left, 8); ++i) to[i] = FromFloat<Element>(values[i]);
  }

  const LinearParams& params_;
  const TileMerge<Policy>& merge_;
  const PartialSender& sender_;
  const float* const sums_;  // the block's own
  const TileShare& share_;
  const int tokens_;
  const int first_feature_;
};

template <typename Policy>
__global__ void __launch_bounds__(kTileThreads, 1)
    TileLinearKernel(const __grid_constant__ TileArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  const uint32_t start = ptx::SharedAddress(memory), data = (start + 1023) & ~1023u;
  const int splits = args.plan.splits;
  const TileShare share(args.plan, static_cast<int>(args.params.num_tokens));
  const CopyRing ring{.data = data,
                      .barriers = data + args.plan.data_bytes,
                      .stages = args.plan.stages,
                      .stage_bytes = args.plan.x_rows * Policy::kRowBytes + Policy::kWeightBytes};
  const TileMerge<Policy> merge{.own = data,
                                .barrier = ring.Full(args.plan.stages),  // after the ring's
                                .rank = share.rank,
                                .splits = splits,
                                .tokens = (args.plan.tokens + splits - 1) / splits};
  const bool merges = splits > 1;
  if (threadIdx.x == Policy::kConsumers) {
    ring.Init(kTileConsumerGroups);
    merge.Init();
    ptx::FenceMbarrierInit();
  }
  __syncthreads();
  if (threadIdx.x >= Policy::kConsumers) {
    if (threadIdx.x == Policy::kConsumers) ProduceTile<Policy>(args, share, ring);
    __syncwarp();
    if (!merges) return;
    ptx::ClusterArrive();
    ptx::ClusterWait();
    ptx::ClusterArrive();
    ptx::ClusterWait();
    return;
  }
  PartialSender sender(args.send);
  if constexpr (Policy::kSends) {
    ptx::GridDependencyWait();
    sender.LookUpLaunch();
  }
  float sums[Policy::kColumns / 2];
  MultiplyTile<Policy>(args.plan, share, ring, sums);
  if (merges) ptx::ClusterArrive();              // the others may now write to the ring's memory
  ptx::NamedBarrierSync(1, Policy::kConsumers);  // all consumers have read the ring
  float* const own = reinterpret_cast<float*>(reinterpret_cast<char*>(memory) + (data - start));
  StoreTileSums<Policy>(sums, own);
  if (merges) ptx::FenceProxyAsyncShared();
  ptx::NamedBarrierSync(1, Policy::kConsumers);
  if (merges) {
    ptx::ClusterWait();
    const int to = static_cast<int>(threadIdx.x);
    if (to < splits && to != share.rank) merge.Send(to);
    ptx::MbarrierWaitCluster(merge.barrier, 0);
    ptx::ClusterArrive();
  }
  ptx::GridDependencyWait();  // for the data that the epilogue reads, and before it writes
  TileEpilogue<Policy>(args, share, merge, sender, own).Finish();
  if (merges) ptx::ClusterWait();  // a copy out of this block's shared memory has arrived
#endif
}

}  // namespace tokline
