// What all parts of Linear's kernel for sm_90a use: its arguments, its shared memory, and a block's
// share of the work.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/peer_buffers.h"
#include "kernels/device/copy_ring.cuh"
#include "kernels/kv_append/kv_append.h"
#include "kernels/linear/linear_plan.h"

namespace tokline {

// The kernel's arguments. Maps: `weight` {64, rows, 1, 1, K / 64} or, if gated, {64, 8, gate or up,
// rows / 8, K / 64}; `x` {64, tokens, K / 64}.
struct WgmmaArgs {
  LinearParams params;
  WgmmaPlan plan;
  CUtensorMap weight, x;
  PeerBuffers send;  // of one rank where nothing is sent
};
struct WgmmaAppendArgs : WgmmaArgs {
  KvAppendParams append;
};

// kFewerValue: there are fewer tokens than kTokens, and boxes of x end at the last one.
// kHeadDimValue: the head_dim of the heads that the kernel appends, or 0. kSendsValue: outputs are
// sent to the peers.
template <typename T, int kTokensValue, bool kFewerValue, int kHeadDimValue = 0,
          bool kSendsValue = false>
struct WgmmaPolicy {
  static constexpr bool kSends = kSendsValue;
  static constexpr bool kFewer = kFewerValue;
  using Type = T;
  using Args = std::conditional_t<kHeadDimValue != 0, WgmmaAppendArgs, WgmmaArgs>;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kTokens = kTokensValue;
  static constexpr int kBlockK = kWgmmaBlockK;
  static constexpr int kPanels = kBlockK / 64;
  static constexpr int kWeightPanel = kWgmmaRows * 128, kXPanel = kTokens * 128;  // bytes
  static constexpr int kWeightBytes = kPanels * kWeightPanel;
  static constexpr int kXBytes = kPanels * kXPanel;
  static constexpr bool kInRegisters = kTokens <= kWgmmaRegisterTokens;
  static constexpr int kHeldBlocks = WgmmaHeldBlocks(kTokens);
  static constexpr int kThreads = kWgmmaThreads + 32 * WgmmaIdleWarps(kTokens);
  static constexpr int kMinBlocks = kTokens == 8    ? (kHeadDim ? 3 : 4)
                                    : kTokens == 16 ? 3
                                    : kTokens == 32 ? 2
                                                    : 1;
};

// The layout of shared memory.
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
    norm_weight = partials + plan.partials_bytes;
    arrived = norm_weight + plan.norm_bytes;
    weight.barriers = arrived + 8;
    x.barriers = weight.Full(weight.stages);
  }
  CopyRing weight, x;
  uint32_t partials;
  uint32_t norm_weight;  // of the share of K; empty if the kernel does not normalise
  uint32_t arrived;      // the barrier of the partial sums

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
  int cluster, rank;   // the block is number `rank` of its cluster
  int tile, split;     // of the weight's rows, and of K
  int first_row;       // of the tile, among those of the cluster
  int first_k, num_k;  // multiples of kWgmmaSplitK; they may reach past K, where copies bring zeros

  __device__ __forceinline__ explicit WgmmaShare(const WgmmaPlan& plan) {
    cluster = static_cast<int>(blockIdx.x) / plan.cluster;
    rank = static_cast<int>(blockIdx.x) % plan.cluster;
    tile = static_cast<int>(blockIdx.x) / plan.splits;
    split = rank % plan.splits;
    first_row = rank / plan.splits * kWgmmaRows;
    first_k = split * plan.k_units / plan.splits * kWgmmaSplitK;
    num_k = (split + 1) * plan.k_units / plan.splits * kWgmmaSplitK - first_k;
  }
};

}  // namespace tokline
