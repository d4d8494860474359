// Linear on sm_90a: the copy engine streams weights and tokens into shared memory, and clusters of
// blocks share the K of a tile.
//
// Grid: `splits` blocks own a tile of 64 weight rows (with gated_silu 8 gate rows, then the 8 up
//   rows that belong to them, and so on). Each multiplies its share of K. A cluster consists of the
//   blocks of one tile or, if heads are appended, of one head.
// Block: four consumer warps, and one producer warp whose first lane issues copies. With 64 tokens
//   there are also warps that end after the first barrier; they spread the blocks over the SMs
//   (README.md).
// Shared memory: a ring of weights (64 rows x kBlockK per stage) and a ring of x (all tokens x
//   kBlockK per stage), both in panels of 64 k with the 128-byte swizzle; partial sums from every
//   block of the cluster; the norm weight of the share; mbarriers. Rows after the last token are
//   zeros or keep their old contents; their sums are never read.
// Dependent launch: the ring of weights is filled before the wait, and with up to 16 tokens the
//   first weights are also loaded into registers. In a chain of these kernels the weights stream
//   without a pause.
// Products: up to 16 tokens use mma.sync, whose weights wait for x in registers; more use wgmma.
// Merge: each block sends the sums of a token to the block of the cluster that finishes this token.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/copy_ring.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cache_policy.cuh"
#include "kernels/device/ptx/cluster.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/ptx/mma.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/ptx/wgmma.cuh"
#include "kernels/device/rank_packets.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/linear/wgmma_epilogue_device.cuh"
#include "kernels/linear/wgmma_heads_device.cuh"
#include "kernels/linear/wgmma_norm_device.cuh"

namespace tokline {

// The producer's only active lane.
template <typename Policy>
__device__ __forceinline__ void ProduceWgmma(const WgmmaArgs& args, const WgmmaShare& share,
                                             const WgmmaShared<Policy>& shared) {
  const CopyRing &weight = shared.weight, &x = shared.x;
  const int blocks = share.num_k / Policy::kBlockK;
  const int row = args.params.gated_silu ? 0 : share.tile * kWgmmaRows;
  const int pair = args.params.gated_silu ? share.tile * (kWgmmaRows / 16) : 0;
  const uint64_t once = ptx::EvictFirstPolicy();
  const auto load_weight = [&](int block, int stage) {
    ptx::MbarrierArriveExpect(weight.Full(stage), Policy::kWeightBytes);
    ptx::TensorCopyToShared(weight.Stage(stage), &args.weight, 0, row, 0, pair,
                            share.first_k / 64 + block * Policy::kPanels, weight.Full(stage), once);
  };
  const int x_bytes = Policy::kFewer
                          ? static_cast<int>(args.params.num_tokens) * 128 * Policy::kPanels
                          : Policy::kXBytes;
  const auto load_x = [&](int block, int stage) {
    ptx::MbarrierArriveExpect(x.Full(stage), x_bytes);
#pragma unroll
    for (int panel = 0; panel < (Policy::kFewer ? Policy::kPanels : 1); ++panel) {
      ptx::TensorCopyToShared(x.Stage(stage) + panel * Policy::kXPanel, &args.x, 0, 0,
                              share.first_k / 64 + block * Policy::kPanels + panel, x.Full(stage));
    }
  };
  // More copies in flight gain no bandwidth, but slow down all other loads of the device
  // (README.md).
  constexpr int kInFlight = 2;
  // The consumers take their first blocks into registers before they wait.
  const int early = min(blocks, weight.stages + Policy::kHeldBlocks);
  RingPosition weight_at{weight.stages}, arrived{weight.stages}, x_at{x.stages};
  for (int block = 0; block < early; ++block) {
    if (block >= kInFlight) {
      ptx::MbarrierWait(weight.Full(arrived.stage), arrived.phase);
      arrived.Advance();
    }
    if (block >= weight.stages) {
      ptx::MbarrierWait(weight.Empty(weight_at.stage), weight_at.phase ^ 1);
    }
    load_weight(block, weight_at.stage);
    weight_at.Advance();
  }
  // With up to 16 tokens, all_reduce_norm starts to sum only after this kernel has ended.
  constexpr bool kSends = Policy::kSends && !Policy::kInRegisters;
  if (!kSends) ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  if (kSends) ptx::GridDependencyLaunch();
  for (int block = 0; block < min(blocks, x.stages); ++block) load_x(block, block);
  for (int read = 0; read < blocks - min(early, x.stages); ++read) {
    if (read + x.stages < blocks) {
      ptx::MbarrierWait(x.Empty(x_at.stage), x_at.phase);
      load_x(read + x.stages, x_at.stage);
      x_at.Advance();
    }
    if (read + early < blocks) {
      ptx::MbarrierWait(weight.Empty(weight_at.stage), weight_at.phase ^ 1);
      load_weight(read + early, weight_at.stage);
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

  // Multiplies the weights with the block's x.
  __device__ __forceinline__ void MultiplyAdd(const Weights& weights, uint32_t x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int eight = 0; eight < Policy::kTokens / 8; ++eight) {
      uint32_t tokens[kSteps / 2][4];  // 8 tokens of two steps each; all loads come first
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        ptx::LdMatrixX4(tokens[step / 2],
                        x + step / 4 * Policy::kXPanel +
                            SwizzledOffset<128>(eight * 8 + lane % 8, step % 4 * 2 + lane / 8));
      }
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        const uint32_t(&two)[4] = tokens[step / 2];
        ptx::MmaM16N8K16<T>(chains_[0][eight], weights[step], two[0], two[1]);
        ptx::MmaM16N8K16<T>(chains_[1][eight], weights[step + 1], two[2], two[3]);
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

// The work of a consumer up to the block's sums, which are laid out as in ptx/wgmma.cuh with weight
// rows as rows and tokens as columns.
template <typename Policy, typename Epilogue>
__device__ __forceinline__ void MultiplyInRegisters(const WgmmaShare& share,
                                                    const WgmmaShared<Policy>& shared,
                                                    SharedNorm<Policy>& norm, Epilogue& epilogue,
                                                    float (&sums)[Policy::kTokens / 2]) {
  using Products = RegisterProducts<Policy>;
  constexpr int kHeld = Policy::kHeldBlocks;
  const int blocks = share.num_k / Policy::kBlockK;
  Products products;
  typename Products::Weights held[kHeld];
  const CopyRing &weight = shared.weight, &x = shared.x;
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
  const auto multiply = [&](const typename Products::Weights& weights, int block) {
    ptx::MbarrierWait(x.Full(x_at.stage), x_at.phase);
    if (norm.IsOn() && block >= x.stages) {
      norm.Apply(block, x_at.stage);
      norm.Sync();
    }
    products.MultiplyAdd(weights, x.Stage(x_at.stage));
    release(x, x_at);
  };
#pragma unroll 1
  for (int first = 0; first < blocks; first += kHeld) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (first + i < blocks) load(held[i]);
    }
    if (first == 0) {
      ptx::GridDependencyWait();
      epilogue.LoadFirst();
      if (norm.IsOn()) {
        norm.MakeFactors();
#pragma unroll 1
        for (int block = 0; block < min(blocks, x.stages); ++block) {
          ptx::MbarrierWait(x.Full(block), 0);
          norm.Apply(block, block);
        }
        norm.Sync();
      }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (first + i < blocks) multiply(held[i], first + i);
    }
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
  epilogue.LoadFirst();
  RingPosition weight_at{weight.stages}, x_at{x.stages};
  int read_weight = 0, read_x = 0;  // the stages of the previous block
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
      ptx::WgmmaWait<1>();    // the previous block has been read
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

template <typename Policy>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kMinBlocks)
    WgmmaLinearKernel(const __grid_constant__ typename Policy::Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Epilogue =
      std::conditional_t<Policy::kHeadDim != 0, HeadEpilogue<Policy>, WgmmaEpilogue<Policy>>;
  extern __shared__ uint4 memory[];
  const WgmmaShared<Policy> shared(args.plan, memory);
  const WgmmaShare share(args.plan);
  const PartialSums layout(args, share);
  const bool produces = threadIdx.x >= kWgmmaConsumers;
  const bool merges = args.plan.cluster > 1;
  if (threadIdx.x == kWgmmaConsumers) {
    shared.weight.Init(kWgmmaConsumers / 32);
    shared.x.Init(kWgmmaConsumers / 32);
    ptx::MbarrierInit(shared.arrived, 1);
    ptx::FenceMbarrierInit();
    ptx::MbarrierArriveExpect(shared.arrived, ArrivingBytes(args.plan, layout));
  }
  __syncthreads();
  if (Policy::kThreads > kWgmmaThreads && threadIdx.x >= kWgmmaThreads) return;  // an idle warp
  if (merges) ptx::ClusterArrive();  // sums may be sent to this block
  if (produces) {
    if (threadIdx.x == kWgmmaConsumers) ProduceWgmma<Policy>(args, share, shared);
    __syncwarp();
    if (merges) ptx::ClusterWait();
    return;
  }
  float sums[Policy::kTokens / 2];
  Epilogue epilogue(args, share, layout);
  epilogue.Prefetch();
  if constexpr (Policy::kInRegisters) {
    SharedNorm<Policy> norm(args, share, shared);
    norm.Prefetch();
    MultiplyInRegisters<Policy>(share, shared, norm, epilogue, sums);
  } else {
    MultiplyByWgmma<Policy>(share, shared, epilogue, sums);
  }
  if (merges) ptx::ClusterWait();
  SendSums<Policy>(args, share, layout, shared, sums);
  const bool finishes = layout.num_tokens > 0;
  if (finishes && merges) ptx::MbarrierWaitCluster(shared.arrived, 0);
  if (!merges) ptx::NamedBarrierSync(1, kWgmmaConsumers);
  if (finishes) epilogue.Finish(shared.template Pointer<const float>(shared.partials));
#endif
}

}  // namespace tokline
