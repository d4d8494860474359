// What the kernels of chunk_decode are given, and the sizes that they are compiled for.
#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/device/convert.cuh"

namespace tokline::chunk_decode {

// The kernel's arguments: the params, and pointers into the workspace.
struct Arguments {
  ChunkDecodeParams params;
  PagedKvBytes kv_bytes;  // of params.layout
  uint32_t* counters;
  float2* max_sum;
  float* outputs;
  float scale_log2;         // scale * log2(e)
  bool queries_with_tiles;  // shared memory has room for them
};

template <DType kDType, int kHeadDimValue>
struct Policy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kWarps = kChunkDecodeWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kTile = kChunkDecodeTileTokens;
  static constexpr int kStages = kChunkDecodeStages;
  static constexpr int kPieces = kHeadDim / 8;  // 16-byte pieces of a row
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kTileBytes = kTile * kRowBytes;  // of K or of V
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kSteps = kHeadDim / 16;       // MMA steps over head_dim
  static constexpr int kStateStride = kHeadDim + 8;  // floats: keeps fragment stores apart
  static_assert(kStages * kStageBytes == ChunkDecodeSharedBytes(kHeadDim));
  static constexpr int kQueryBytes = kChunkDecodeNarrowRows * kRowBytes;  // of a task
  static_assert(2 * kQueryBytes == ChunkDecodeQueryBytes(kHeadDim));
  static_assert((kStages * kStageBytes + kWarps * kQueryBytes) ==
                ChunkDecodeWarpsSharedBytes(kHeadDim));
  static constexpr int kStateBytes = kWarps * 16 * (kStateStride + 2) * 4;
  static_assert(kStateBytes <= 2 * kStageBytes);
  static constexpr int kRegisters = ChunkDecodeRegisters(kHeadDim);
  // The number of query rows of a task whose states fit one stage.
  static constexpr int kRowsInStage = kStageBytes / (kWarps * (kStateStride + 2) * 4);
  static_assert(kWarps * 16 == kChunkDecodeMaxRows && kTile == 4 * 16);
};

}  // namespace tokline::chunk_decode
