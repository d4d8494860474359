// The model of a block's time, by which plans decide whether chunks that several sequences list are
// read once, and which lane reads what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_shares.h"

namespace tokline {

// Microseconds of one block on an H200 with 128-element bf16 heads; elsewhere their ratios count.
// This kernel's README gives what they follow from:
// - b64_s2048 (128.2), b256_s1024 (258.6) and b32_s8192 (248.4) are 64, 128 and 128 tiles per lane
//   in 2, 8 and 1 tasks, after 2.2 of launch: a tile from memory and a task.
// - "Clusters": a tile that the L2 has.
// - Before merges were by rows per warp, b64_shared16384 (246.5) and b256_shared4096 (205.4) were
//   bound by lanes of 38.8 and 31.0 wide tiles and by a block that merged 64 rows: 5.24 per wide
//   tile, if a row took 0.61. The wide tile errs against sharing.
// - A merge of two rows then took 2.5: 1.28 beside its rows.
// - "Clusters or lanes": further eight states, bundles and what clusters take are fitted to the
//   shapes there, on an H100.
// - "Cut, whole or in parts": in equal shares a lane leaves two states and merges once, which takes
//   5.0.
struct ChunkDecodeTimes {
  double memory_tile_us = 1.94;
  double cached_tile_us = 1.3;
  double wide_tile_us = 5.24;  // of more than 16 query rows
  double task_us = 0.9;
  double state_us = 1.55;         // more for a task that leaves partial states
  double merge_us = 1.28;         // more for a task that adds states
  double merged_row_us = 0.61;    // for each row of a warp
  double merged_states_us = 0.5;  // for each further eight states, of its rows together
  double bundles_us = 1.5;        // more for a grid whose kernel may add states in bundles
  // Of a block of a cluster, beside its tiles and less the launch, as the times above.
  double cluster_us = 1.1;
  double cluster_row_us = 0.1;        // for each query head of a KV head
  double cluster_tile_us = 1.2;       // of a head_dim of 128, while few blocks read
  double cluster_half_tile_us = 0.8;  // of a head_dim of 64
  // A plan that reads once is taken if it ends so much earlier. A guess: 2 x 4,096 shared tokens of
  // Qwen3-0.6B took 2 more per layer (results/h200/sharing.jsonl, one pair of runs, of which equal
  // ones differ by as much), where the model of that time expected 1.9 less.
  double least_gain_us = 4;
};

inline constexpr ChunkDecodeTimes kChunkDecodeTimes;

// How much longer a task takes by each sequence whose states it adds.
double AddStatesUs(int32_t states, int32_t group);

// How much longer the last block to arrive at a sequence takes by its states, which lie in bundles
// where they are many: those of a bundle, and then the sums of all.
double MergeUs(int32_t states, int32_t group, bool bundled);

// When each lane ends that reads these pieces, of which those of a lane stand in its order.
// `tile_us` is the time of a tile of at most 16 query rows while all lanes read.
std::vector<double> LaneEndsUs(std::span<const ChunkDecodePiece> pieces,
                               std::span<const ChunkDecodeSegment> segments, int32_t num_seqs,
                               const ChunkDecodeGrid& grid, int32_t group,
                               double tile_us = kChunkDecodeTimes.memory_tile_us);

// When clusters end that have one sequence each.
double ClustersUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& clusters,
                  const PagedKvLayout& layout, int32_t group, const DeviceFacts& device);

// When the lanes of the full grid end, about: if the load is cut equally for as many of them as end
// first, or if they take whole sequences.
double LanesUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& full, int32_t group);

// The next smaller number of lanes for which it is considered to cut a load.
constexpr int32_t FewerLanes(int32_t lanes) { return lanes * 2 / 3; }

// When the last lane of a plan ends.
double EstimateUs(const ChunkDecodePlan& plan, int32_t group, double tile_us);

}  // namespace tokline
