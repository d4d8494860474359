// Linear on sm_90a: the copy engine streams weights and tokens into shared memory, and clusters of
// blocks share the K of a tile.
//
// Grid: a cluster of `splits` blocks owns 64 weight rows (with gated_silu 8 gate rows, then the 8
//   up rows that belong to them, and so on). Each block multiplies its share of K.
// Block: four consumer warps, and one producer warp whose first lane issues copies.
// Shared memory: a ring of weights (64 rows x kBlockK per stage) and a ring of x (all tokens x
//   kBlockK per stage), both in panels of 64 k with the 128-byte swizzle; partial sums from every
//   block of the cluster, in pieces of 8 rows x 8 tokens; mbarriers.
// Dependent launch: the ring of weights is filled before the wait, and with up to 16 tokens the
//   first weights are also loaded into registers. In a chain of these kernels the weights stream
//   without a pause.
// Products: with up to 16 tokens mma.sync, whose weights wait for x in registers; with more, wgmma.
// Merge: each block sends the sums of a row to the block of the cluster that finishes this row,
//   which adds them in the order of the blocks. Results are deterministic.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/copy_ring.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/ptx/mma.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/ptx/wgmma.cuh"
#include "kernels/device/ptx/wgmma_shared.cuh"
#include "kernels/device/silu.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/linear/linear_policy.h"

namespace tokline {

// The kernel's arguments. Maps: `weight` {64, rows, 1, 1, K / 64}, or if gated {64, 8, gate or up,
// rows / 8, K / 64}; `x` {64, tokens, K / 64}.
struct WgmmaArgs {
  LinearParams params;
  WgmmaPlan plan;
  CUtensorMap weight, x;
};

template <typename T, int kTokensValue>
struct WgmmaPolicy {
  using Type = T;
  static constexpr int kTokens = kTokensValue;
  static constexpr int kBlockK = WgmmaBlockK(kTokens);
  static constexpr int kPanels = kBlockK / 64;
  static constexpr int kWeightPanel = kWgmmaRows * 128, kXPanel = kTokens * 128;  // bytes
  static constexpr int kWeightBytes = kPanels * kWeightPanel;
  static constexpr int kXBytes = kPanels * kXPanel;
  static constexpr bool kInRegisters = kTokens <= 16;
  static constexpr int kHeldBlocks = 2;  // blocks of weights that wait in registers
};

// Where things lie in shared memory.
template <typename Policy>
class WgmmaShared {
 public:
  __device__ __forceinline__ WgmmaShared(const WgmmaPlan& plan, void* memory)
      : memory_(static_cast<char*>(memory)), base_(ptx::SharedAddress(memory)) {
    weight = {.data = (base_ + 1023) & ~1023u,
              .stages = plan.weight_stages,
              .stage_bytes = Policy::kWeightBytes};
    x = {.data = weight.Stage(weight.stages),
         .stages = plan.x_stages,
         .stage_bytes = Policy::kXBytes};
    partials = x.Stage(x.stages);
    arrived = partials + plan.partials_bytes;
    weight.barriers = arrived + 8;
    x.barriers = weight.Full(weight.stages);
  }
  CopyRing weight, x;
  uint32_t partials;
  uint32_t arrived;  // the barrier of the partial sums

  template <typename Value>
  __device__ __forceinline__ Value* Pointer(uint32_t address) const {
    return reinterpret_cast<Value*>(memory_ + (address - base_));
  }

 private:
  char* memory_;
  uint32_t base_;
};

// A block's part of the work.
struct WgmmaShare {
  int tile, rank;
  int first_k, num_k;  // multiples of kWgmmaSplitK; they may reach past K, where copies bring zeros

  __device__ __forceinline__ explicit WgmmaShare(const WgmmaPlan& plan) {
    tile = static_cast<int>(blockIdx.x) / plan.splits;
    rank = static_cast<int>(blockIdx.x) % plan.splits;
    first_k = rank * plan.k_units / plan.splits * kWgmmaSplitK;
    num_k = (rank + 1) * plan.k_units / plan.splits * kWgmmaSplitK - first_k;
  }
};

// The producer's only active lane.
template <typename Policy>
__device__ __forceinline__ void ProduceWgmma(const WgmmaArgs& args, const WgmmaShare& share,
                                             const WgmmaShared<Policy>& shared) {
  const CopyRing &weight = shared.weight, &x = shared.x;
  const int blocks = share.num_k / Policy::kBlockK;
  const int row = args.params.gated_silu ? 0 : share.tile * kWgmmaRows;
  const int pair = args.params.gated_silu ? share.tile * (kWgmmaRows / 16) : 0;
  const auto load_weight = [&](int block, int stage) {
    ptx::MbarrierArriveExpect(weight.Full(stage), Policy::kWeightBytes);
    ptx::TensorCopyToShared(weight.Stage(stage), &args.weight, 0, row, 0, pair,
                            share.first_k / 64 + block * Policy::kPanels, weight.Full(stage));
  };
  const auto load_x = [&](int block, int stage) {
    ptx::MbarrierArriveExpect(x.Full(stage), Policy::kXBytes);
    ptx::TensorCopyToShared(x.Stage(stage), &args.x, 0, 0,
                            share.first_k / 64 + block * Policy::kPanels, x.Full(stage));
  };
  // More copies in flight gain no bandwidth, but make everybody else's loads slow (README.md).
  constexpr int kInFlight = 2;
  for (int block = 0; block < min(blocks, weight.stages); ++block) {
    if (block >= kInFlight) ptx::MbarrierWait(weight.Full(block - kInFlight), 0);
    load_weight(block, block);
  }
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  for (int block = 0; block < min(blocks, x.stages); ++block) load_x(block, block);
  RingPosition weight_at{weight.stages}, x_at{x.stages};
  for (int read = 0; read < blocks - min(weight.stages, x.stages); ++read) {
    if (read + x.stages < blocks) {
      ptx::MbarrierWait(x.Empty(x_at.stage), x_at.phase);
      load_x(read + x.stages, x_at.stage);
      x_at.Advance();
    }
    if (read + weight.stages < blocks) {
      ptx::MbarrierWait(weight.Empty(weight_at.stage), weight_at.phase);
      load_weight(read + weight.stages, weight_at.stage);
      weight_at.Advance();
    }
  }
}

// Products of up to 16 tokens: mma.sync with weights as the A operand. A warp has 16 weight rows.
template <typename Policy>
class RegisterProducts {
 public:
  using T = typename Policy::Type;
  static constexpr int kSteps = Policy::kBlockK / 16;
  using Weights = uint32_t[kSteps][4];

  // Loads a block's weights from shared memory.
  static __device__ __forceinline__ void Load(uint32_t shared, Weights& weights) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::LdMatrixX4(weights[step], shared + step / 4 * Policy::kWeightPanel +
                                         SwizzledOffset<128>(row, step % 4 * 2 + lane / 16));
    }
  }

  // Multiplies them with the block's x.
  __device__ __forceinline__ void MultiplyAdd(const Weights& weights, uint32_t x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
#pragma unroll
      for (int eight = 0; eight < Policy::kTokens / 8; ++eight) {
        uint32_t tokens[4];  // 8 tokens of two steps
        ptx::LdMatrixX4(tokens,
                        x + step / 4 * Policy::kXPanel +
                            SwizzledOffset<128>(eight * 8 + lane % 8, step % 4 * 2 + lane / 8));
        ptx::MmaM16N8K16<T>(chains_[0][eight], weights[step], tokens[0], tokens[1]);
        ptx::MmaM16N8K16<T>(chains_[1][eight], weights[step + 1], tokens[2], tokens[3]);
      }
    }
  }

  __device__ __forceinline__ void Sum(float (&sums)[Policy::kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < Policy::kTokens / 2; ++i) {
      sums[i] = chains_[0][i / 4][i % 4] + chains_[1][i / 4][i % 4];
    }
  }

 private:
  float chains_[2][Policy::kTokens / 8][4] = {};
};

// What a consumer does up to the block's sums, which lie as in ptx/wgmma.cuh with weight rows as
// rows and tokens as columns.
template <typename Policy, typename Epilogue>
__device__ __forceinline__ void MultiplyInRegisters(const WgmmaShare& share,
                                                    const WgmmaShared<Policy>& shared,
                                                    Epilogue& epilogue,
                                                    float (&sums)[Policy::kTokens / 2]) {
  using Products = RegisterProducts<Policy>;
  constexpr int kHeld = Policy::kHeldBlocks;
  const int blocks = share.num_k / Policy::kBlockK;
  Products products;
  typename Products::Weights held[kHeld];
  const CopyRing &weight = shared.weight, &x = shared.x;
  const int held_blocks = min(blocks, kHeld);
  RingPosition weight_at{weight.stages}, x_at{x.stages};
  const auto release = [&](const CopyRing& ring, RingPosition& at) {
    if (blocks > ring.stages) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(ring.Empty(at.stage));
    }
    at.Advance();
  };
  const auto load = [&](typename Products::Weights& to) {
    ptx::MbarrierWait(weight.Full(weight_at.stage), weight_at.phase);
    Products::Load(weight.Stage(weight_at.stage), to);
    release(weight, weight_at);
  };
  const auto multiply = [&](const typename Products::Weights& weights) {
    ptx::MbarrierWait(x.Full(x_at.stage), x_at.phase);
    products.MultiplyAdd(weights, x.Stage(x_at.stage));
    release(x, x_at);
  };
#pragma unroll
  for (int block = 0; block < kHeld; ++block) {
    if (block < held_blocks) load(held[block]);
  }
  ptx::GridDependencyWait();
  epilogue.Prefetch();
#pragma unroll
  for (int block = 0; block < kHeld; ++block) {
    if (block < held_blocks) multiply(held[block]);
  }
#pragma unroll 1
  for (int block = held_blocks; block < blocks; ++block) {
    load(held[0]);
    multiply(held[0]);
  }
  products.Sum(sums);
}

template <typename Policy, typename Epilogue>
__device__ __forceinline__ void MultiplyByWgmma(const WgmmaShare& share,
                                                const WgmmaShared<Policy>& shared,
                                                Epilogue& epilogue,
                                                float (&sums)[Policy::kTokens / 2]) {
  using T = typename Policy::Type;
  const CopyRing &weight = shared.weight, &x = shared.x;
  const int blocks = share.num_k / Policy::kBlockK;
  ptx::GridDependencyWait();
  epilogue.Prefetch();
  RingPosition weight_at{weight.stages}, x_at{x.stages};
  int read_weight = 0, read_x = 0;  // the stages of the block before
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    ptx::MbarrierWait(weight.Full(weight_at.stage), weight_at.phase);
    ptx::MbarrierWait(x.Full(x_at.stage), x_at.phase);
    const uint64_t a = ptx::WgmmaDescriptor(weight.Stage(weight_at.stage));
    const uint64_t b = ptx::WgmmaDescriptor(x.Stage(x_at.stage));
    ptx::PinRegisters(sums);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < Policy::kBlockK / 16; ++step) {
      const int a_step = step / 4 * Policy::kWeightPanel + step % 4 * 32;
      const int b_step = step / 4 * Policy::kXPanel + step % 4 * 32;
      ptx::WgmmaK16<T>(sums, a + (a_step >> 4), b + (b_step >> 4), (block | step) != 0);
    }
    ptx::WgmmaCommit();
    if (blocks > x.stages) {  // there are at least as many stages of weights
      ptx::WgmmaWait<1>();    // the block before has been read
      if (block > 0 && threadIdx.x % 32 == 0) {
        ptx::MbarrierArrive(x.Empty(read_x));
        ptx::MbarrierArrive(weight.Empty(read_weight));
      }
    }
    read_weight = weight_at.stage;
    read_x = x_at.stage;
    weight_at.Advance();
    x_at.Advance();
  }
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(sums);
}

// Partial sums lie as [block of the cluster][8 rows][8 tokens][kWgmmaPiece], row by row in a piece.
struct PartialSums {
  int pieces;      // of 8 tokens
  int row_eights;  // of the rows that a block finishes

  __device__ __forceinline__ explicit PartialSums(const WgmmaArgs& args)
      : pieces((static_cast<int>(args.params.num_tokens) + 7) / 8),
        row_eights(kWgmmaRows / 8 / args.plan.splits) {}

  // In floats.
  __device__ __forceinline__ int At(int rank, int row_eight, int piece) const {
    return ((rank * row_eights + row_eight) * pieces + piece) * kWgmmaPiece;
  }
};

// Hands the block's sums to the blocks that finish them.
template <typename Policy>
__device__ __forceinline__ void SendSums(const WgmmaArgs& args, const WgmmaShare& share,
                                         const WgmmaShared<Policy>& shared,
                                         const float (&sums)[Policy::kTokens / 2]) {
  const PartialSums layout(args);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row_eight = threadIdx.x / 32 * 2 + half;
    const int to = row_eight / layout.row_eights;
    const uint32_t at =
        shared.partials + 4 * layout.At(share.rank, row_eight % layout.row_eights, 0) + lane * 8;
    const uint32_t remote = ptx::ClusterAddress(at, to);
    const uint32_t barrier = ptx::ClusterAddress(shared.arrived, to);
#pragma unroll
    for (int piece = 0; piece < Policy::kTokens / 8; ++piece) {
      if (piece < layout.pieces) {
        const float2 pair{sums[piece * 4 + half * 2], sums[piece * 4 + half * 2 + 1]};
        if (args.plan.splits > 1) {
          ptx::ClusterStoreAsync(remote + piece * kWgmmaPiece * 4, pair, barrier);
        } else {
          *shared.template Pointer<float2>(at + piece * kWgmmaPiece * 4) = pair;
        }
      }
    }
  }
}

// Adds the partial sums of the block's rows and finishes kColumns outputs of a token at a time: 1,
// or 8 as one vector where the tensors are aligned for it.
template <typename T, int kTokens>
class WgmmaEpilogue {
 public:
  __device__ __forceinline__ WgmmaEpilogue(const WgmmaArgs& args, const WgmmaShare& share)
      : params_(args.params),
        layout_(args),
        splits_(args.plan.splits),
        num_tokens_(static_cast<int>(params_.num_tokens)),
        columns_(layout_.row_eights * (params_.gated_silu ? 4 : 8)),
        first_column_(share.tile * (params_.gated_silu ? kWgmmaRows / 2 : kWgmmaRows) +
                      share.rank * columns_),
        left_(static_cast<int>(params_.out_features) - first_column_) {}

  // Loads the residual of the first outputs.
  __device__ __forceinline__ void Prefetch() { LoadResidual(threadIdx.x); }

  __device__ __forceinline__ void Finish(const float* partials) {
#pragma unroll 1
    for (int item = threadIdx.x; item < columns_ / kColumns * kTokens; item += kWgmmaConsumers) {
      if (!Exists(item)) continue;
      if (item != threadIdx.x) LoadResidual(item);
      FinishItem(item, partials);
    }
  }

 private:
  static constexpr int kColumns = kTokens <= 16 ? 1 : 8;

  // Neighbouring lanes have neighbouring tokens, which lie in other banks.
  __device__ __forceinline__ int Token(int item) const { return item % kTokens; }
  __device__ __forceinline__ int Column(int item) const { return item / kTokens * kColumns; }
  __device__ __forceinline__ bool Exists(int item) const {
    return Token(item) < num_tokens_ && Column(item) < min(columns_, left_);
  }
  // Whether the item's columns of a tensor can be accessed as one vector.
  template <typename Element>
  __device__ __forceinline__ bool IsVector(int item, const Element* tensor, int64_t stride) const {
    return kColumns == 8 && Column(item) + 8 <= left_ &&
           (reinterpret_cast<uintptr_t>(tensor) | stride * sizeof(Element)) % 16 == 0;
  }

  __device__ __forceinline__ void LoadResidual(int item) {
    if (params_.residual == nullptr || !Exists(item)) return;
    const T* const residual = static_cast<const T*>(params_.residual);
    const T* const from =
        residual + Token(item) * params_.residual_stride + first_column_ + Column(item);
    if constexpr (kColumns == 8) {
      if (IsVector(item, residual, params_.residual_stride)) {
        *reinterpret_cast<uint4*>(residual_) = *reinterpret_cast<const uint4*>(from);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (Column(item) + i < left_) residual_[i] = from[i];
    }
  }

  // The sums of kColumns rows of a token over the cluster.
  __device__ __forceinline__ void Add(const float* partials, int token, int row,
                                      float (&sums)[kColumns]) const {
    constexpr int kMaxSplits = 8;
    const float* const at = partials + layout_.At(0, row / 8, token / 8) + row % 8 * 8 + token % 8;
    const int stride = layout_.At(1, 0, 0);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[i] = at[i * 8];
    if constexpr (kColumns == 1) {
      float others[kMaxSplits];  // all loads before the first addition
#pragma unroll
      for (int rank = 1; rank < kMaxSplits; ++rank) {
        others[rank] = rank < splits_ ? at[rank * stride] : 0;
      }
#pragma unroll
      for (int rank = 1; rank < kMaxSplits; ++rank) sums[0] += others[rank];
    } else {
#pragma unroll 1
      for (int rank = 1; rank < splits_; ++rank) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sums[i] += at[rank * stride + i * 8];
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

  __device__ __forceinline__ void FinishItem(int item, const float* partials) const {
    const int token = Token(item), column = Column(item), feature = first_column_ + column;
    const int64_t at = token * params_.out_stride + feature;
    float values[kColumns];
    Add(partials, token, params_.gated_silu ? column / 8 * 16 + column % 8 : column, values);
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
      Add(partials, token, column / 8 * 16 + column % 8 + 8, ups);
      AddBias(feature + static_cast<int>(params_.out_features), ups, column);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        values[i] = Round<T>(Silu(Round<T>(values[i]))) * Round<T>(ups[i]);
      }
    } else if (params_.residual != nullptr) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[i] = Round<T>(values[i]) + ToFloat(residual_[i]);
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

  const LinearParams& params_;
  const PartialSums layout_;
  const int splits_, num_tokens_;
  const int columns_;              // that the block finishes
  const int first_column_, left_;  // columns of the output from there on
  alignas(16) T residual_[kColumns] = {};
};

template <typename Policy>
__global__ void __launch_bounds__(kWgmmaThreads)
    WgmmaLinearKernel(const __grid_constant__ WgmmaArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using T = typename Policy::Type;
  extern __shared__ uint4 memory[];
  const WgmmaShared<Policy> shared(args.plan, memory);
  const WgmmaShare share(args.plan);
  const bool produces = threadIdx.x >= kWgmmaConsumers;
  const bool merges = args.plan.splits > 1;
  if (threadIdx.x == kWgmmaConsumers) {
    shared.weight.Init(kWgmmaConsumers / 32);
    shared.x.Init(kWgmmaConsumers / 32);
    ptx::MbarrierInit(shared.arrived, 1);
    ptx::FenceMbarrierInit();
    constexpr int kPieceBytes = 8 * 8 * 4;
    ptx::MbarrierArriveExpect(shared.arrived,
                              kWgmmaRows / 8 * PartialSums(args).pieces * kPieceBytes);
  }
  __syncthreads();
  if (merges) ptx::ClusterArrive();  // sums may be sent to this block
  if (produces) {
    if (threadIdx.x == kWgmmaConsumers) ProduceWgmma<Policy>(args, share, shared);
    __syncwarp();
    if (merges) ptx::ClusterWait();
    return;
  }
  float sums[Policy::kTokens / 2];
  WgmmaEpilogue<T, Policy::kTokens> epilogue(args, share);
  if constexpr (Policy::kInRegisters) {
    MultiplyInRegisters<Policy>(share, shared, epilogue, sums);
  } else {
    MultiplyByWgmma<Policy>(share, shared, epilogue, sums);
  }
  if (merges) ptx::ClusterWait();
  SendSums<Policy>(args, share, shared, sums);
  if (merges) {
    ptx::MbarrierWaitCluster(shared.arrived, 0);
  } else {
    ptx::NamedBarrierSync(1, kWgmmaConsumers);
  }
  epilogue.Finish(shared.template Pointer<const float>(shared.partials));
#endif
}

}  // namespace tokline
