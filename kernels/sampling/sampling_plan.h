// How sampling is mapped to the device, and the contents of its workspace. Pure host code.
#pragma once

#include <cstdint>

#include "kernels/common/device_facts.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

inline constexpr int32_t kSamplingChunk = 4096;  // logits that a block of the first kernel reads
inline constexpr int32_t kSamplingGroup = 32;    // logits per maximum that the workspace keeps
inline constexpr int64_t kMaxSamplingVocab = int64_t{1} << 22;  // 1,024 chunks
inline constexpr int32_t kChunkScanThreads = 256;               // of a block of the first kernel
inline constexpr int32_t kChunkScanBlocks = 4;                  // of them that share an SM

inline constexpr int32_t kMaxPickRanks = 8;  // blocks of the second kernel that share a row

// What the first kernel computes for a chunk.
struct ChunkStats {
  uint64_t best;  // the largest logit as an ordered integer, then the complement of its id
  // Fixed-point mass of the chunk relative to its own largest logit; not written for greedy rows
  // and those with top-k.
  uint64_t mass;
};

struct SamplingPlan {
  int32_t num_chunks = 0;         // per row
  int32_t num_groups = 0;         // per row
  bool vector_loads = false;      // rows are 16 B aligned
  int32_t ranks = 1;              // blocks of the second kernel per row
  ChunkStats* stats = nullptr;    // [num_rows, num_chunks]
  float* group_maxima = nullptr;  // [num_rows, num_groups]; only for rows with top-k or top-p
};

// Throws InvalidArgument when the workspace is missing, unaligned or too small.
SamplingPlan PlanSampling(const SamplingParams& params);

// The blocks of the first kernel: one per chunk, but no more than run at once.
int32_t ChunkScanGrid(int64_t num_rows, int32_t num_chunks, const DeviceFacts& device);

// The blocks of the second kernel per row, which form a cluster: a power of two, as many as run at
// once and have two chunks each; 1 without clusters and for many rows. The token does not depend on
// it.
int32_t PickRanks(int64_t num_rows, int32_t num_chunks, const DeviceFacts& device);

}  // namespace tokline
