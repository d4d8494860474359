// What all parts of the kernel use: its arguments, a block's share of the rows and of attention,
// and the layout of its memory.
#pragma once

#include <cuda.h>

#include "kernels/decode_step/decode_step_plan.h"
#include "kernels/decode_step/packets_device.cuh"
#include "kernels/device/convert.cuh"
#include "kernels/device/copy_ring.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/named_barrier.cuh"
#include "kernels/device/swizzle.cuh"

namespace tokline::decode_step {

// The start of the workspace: the number of steps so far, the number of blocks of the present step
// that have read it, and, for each set, the number of rows of words and partial states that the
// last step to use it has left there.
struct WorkspaceState {
  uint32_t steps;
  uint32_t readers;
  uint32_t rows[2];
  uint32_t partials[2];
};
static_assert(sizeof(WorkspaceState) <= kDecodeStepStateBytes);

struct Arguments {
  DecodeStepParams params;
  DecodeStepGeometry geometry;
  CUtensorMap kv;  // {64, rows of all pools, head_dim / 64}
};

template <DType kDType, int kHeadDimValue, int kTokensValue>
struct Policy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kTokens = kTokensValue;                             // at most
  static constexpr int kTileBytes = kDecodeStepTileTokens * kHeadDim * 2;  // of K or of V
  using Tile = SwizzledPanels<2 * kHeadDim, kDecodeStepTileTokens>;
  static constexpr int kStageTiles = kDecodeStepStageBytes / (2 * kTileBytes);
};

inline constexpr int kWarps = kDecodeStepWarps;
inline constexpr int kConsumerThreads = 32 * kWarps;
inline constexpr int kProducerWarp = kWarps;
inline constexpr int kCleanerWarp = kWarps + 1;
inline constexpr int kThreads = kConsumerThreads + 64;
inline constexpr int kConsumerBarrier = 1, kTilesBarrier = 2;

__device__ __forceinline__ void SyncConsumers() {
  ptx::NamedBarrierSync(kConsumerBarrier, kConsumerThreads);
}

// A block's features of a projection, an even number.
struct Slice {
  int begin, end;
  Slice() = default;
  __device__ __forceinline__ explicit Slice(int64_t features) {
    const auto pairs = static_cast<uint32_t>(features / 2);
    begin = static_cast<int>(blockIdx.x * pairs / gridDim.x) * 2;
    end = static_cast<int>((blockIdx.x + 1) * pairs / gridDim.x) * 2;
  }
};

// A part of a sequence's context for one KV head.
struct Task {
  int token, kv_head, part, parts;
  int64_t slot, position;
  int first_partial;  // of the sequence and KV head
  int begin, tiles;   // the range of the sequence's tiles that this part reads
  int first_tile;     // in the block's list
  bool appends;       // its last tile holds the step's own token, whose K and V this step makes
};

struct Shared {
  WorkspaceState state;
  int num_tasks, num_partials;
  const uint32_t* embedding[kMaxDecodeStepTokens];  // null: zeros
  Task tasks[kDecodeStepMaxTasks];
  Slice qkv, hidden, inner, vocab;
  alignas(16) float squares[kMaxDecodeStepTokens][kWarps];
};
static_assert(sizeof(Shared) <= kDecodeStepStaticBytes);

// A tile of 16 tokens: its place in a layer's pool, by its first slot, and how many tokens it has.
__device__ __forceinline__ uint32_t PackTile(int64_t slot, int tokens) {
  return static_cast<uint32_t>(slot / kDecodeStepTileTokens) << 5 | static_cast<uint32_t>(tokens);
}
__device__ __forceinline__ int TileTokens(uint32_t tile) { return tile & 31; }

// Where the words of a step lie.
struct WordArea {
  uint32_t* words;
  uint32_t* partials;
  DecodeStepWords of;
  int layers, partial_words;

  __device__ __forceinline__ WordArea(const Arguments& args, uint32_t set)
      : of(args.params.model, args.params.layout.num_kv_heads, args.params.layout.head_dim),
        layers(args.params.model.num_layers),
        partial_words(DecodeStepPartialWords(args.params.model, args.params.layout)) {
    const DecodeStepModel& model = args.params.model;
    const PagedKvLayout& layout = args.params.layout;
    words = reinterpret_cast<uint32_t*>(static_cast<char*>(args.params.workspace) +
                                        kDecodeStepStateBytes) +
            set * DecodeStepSetWords(model, layout, args.geometry.blocks);
    partials = words + DecodeStepRowWords(model, layout);
  }
  __device__ __forceinline__ uint32_t* Row(int token, int layer) const {
    return words + (int64_t{token} * layers + layer) * of.total;
  }
  __device__ __forceinline__ uint32_t* Partial(int index, int layer) const {
    return partials + (int64_t{index} * layers + layer) * partial_words;
  }
};

template <typename Value>
__device__ __forceinline__ const Value* OfLayer(const void* tensor, int64_t stride_bytes,
                                                int layer) {
  return reinterpret_cast<const Value*>(static_cast<const char*>(tensor) + layer * stride_bytes);
}

}  // namespace tokline::decode_step
