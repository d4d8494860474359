// The model of a block's time. Plans use it to decide whether chunks that several sequences list
// are read once, and which lane reads what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_shares.h"

namespace tokline {

// Microseconds of one block on an H200 with 128-element bf16 heads; elsewhere only their ratios
// matter. They follow from measurements in this kernel's README:
// - b64_s2048 (128.2), b256_s1024 (258.6) and b32_s8192 (248.4) have 64, 128 and 128 tiles per lane
//   in 2, 8 and 1 tasks, after 2.2 of launch: this gives the time of a tile from memory.
// - Before merges went by rows per warp, b64_shared16384 (246.5) and b256_shared4096 (205.4) were
//   bound by lanes of 38.8 and 31.0 wide tiles and by a block that merged 64 rows: this gives 5.24
//   per wide tile if a row took 0.61. The time of a wide tile errs against sharing.
// - "Which grid": all other times are fitted to the shapes there. Those of clusters and of rows
//   added in twos are of an H200, the rest of an H100, whose memory takes 2.7 us for a tile. The
//   times that do not depend on the memory are about the same on both.
struct ChunkDecodeTimes {
  double memory_tile_us = 1.94;  // while all lanes read
  double alone_tile_us = 0.5;    // whatever the memory could do
  // While only a part of the lanes of a plan reads, a tile takes that part to this power of the
  // memory's time: a block that has an SM to itself reads less than two that share it. Fitted to 66
  // drawn and public shapes above 12 us (this kernel's README).
  double reading_power = 0.4;
  double cached_tile_us = 1.3;  // from the L2, while all lanes read
  double wide_tile_us = 5.24;   // of more than 16 query rows
  double task_us = 0.8;
  double task_row_us = 0.4;        // more for each row of a warp
  double state_us = 0.8;           // more for a task that leaves partial states
  double merge_us = 0.4;           // more for a task that adds states
  double merged_row_us = 0.4;      // for each row of a warp
  double merged_states_us = 0.75;  // for each further eight states, of its rows together
  double merged_rows_us = 0.5;     // for each further four states of two rows
  double bundles_us = 0.3;         // more for a grid whose kernel may add states in bundles
  // A block of a cluster, besides its tiles and without the launch, like the times above.
  double cluster_us = 0.55;
  double large_cluster_us = 0.4;       // more, for clusters of more than eight
  double cluster_row_us = 0.07;        // for each query head of a KV head
  double cluster_tile_us = 0.64;       // of a head_dim of 128, whatever the memory could do
  double cluster_half_tile_us = 0.62;  // of a head_dim of 64
  double cluster_crowd_us = 0.3;       // more, if there are as many blocks as the full grid has
  // Fewer blocks than the full grid has take longer to read the same bytes: (all blocks / these
  // blocks) to the power of this. Of clusters with parts, only those that get tiles count.
  double cluster_reading = 0.1;
  double parts_reading = 0.2;
  double wave_tiles = 0.7;    // until a cluster of a later wave reads, as many tiles
  double part_row_us = 0.07;  // more for each further part and each row of a block of its cluster
  // At head_dim 64 instructions bound an SM that has several blocks. Where some SMs have one block
  // more than others, the memory's time grows by this part of the difference to the mean.
  double cluster_uneven = 0.6;
  // A warp that is a lane.
  double warp_us = 0.35;          // beside its tasks
  double warp_task_us = 0.9;      // per sequence; its first tokens arrive meanwhile
  int32_t warp_task_tokens = 24;  // the number of those first tokens
  double warp_tile_us = 2;        // whatever the memory could do
  double warp_part_us = 1;        // more for a part of a sequence, which leaves a state
  // Warp lanes take parts only if the model says that this is faster by at least this factor: on
  // drawn shapes its times were too short by up to this factor.
  double warp_parts_margin = 1.15;
  double warp_state_us = 0.5;  // more for each state that it adds
  // Run lanes: the launch of their kernel up to the next kernel's wait, a task, and 128 tokens, for
  // which paged_prefill takes 1.48. The kernel that follows them takes longer than it would alone,
  // because it begins without tiles; these times include that, too.
  double run_us = 6;
  double run_task_us = 3;
  double run_tile_us = 1.5;
  double run_state_us = 0.75;  // more for a warp, for each of their states and each eight rows
  // A plan that reads once is taken if it ends at least this much earlier. A guess: 2 x 4,096
  // shared tokens of Qwen3-0.6B took 2 us more per layer where the model of that time expected 1.9
  // us less (results/h200/sharing.jsonl: one pair of runs, and equal runs differ by as much).
  double least_gain_us = 4;
};

inline constexpr ChunkDecodeTimes kChunkDecodeTimes;

// The time that a task takes besides its tiles and states.
double TaskUs(int32_t group);

// The time of a run lane's task that reads `tiles` tiles of kChunkDecodeTileTokens.
double RunTaskUs(int32_t tiles);

// How much longer a task takes for each sequence whose states it adds.
double AddStatesUs(int32_t states, int32_t group);

// How much longer the last block to arrive at a sequence takes to add its states. Many states are
// added in bundles: first the states of a bundle, and then the sums of all bundles.
double MergeUs(int32_t states, int32_t group, bool bundled);

// Returns the time at which each lane ends. A lane's pieces are in the order in which it reads
// them. Of pieces that run lanes read, only the states are counted. `tile_us` is the time of a tile
// of at most 16 query rows while all lanes read.
std::vector<double> LaneEndsUs(std::span<const ChunkDecodePiece> pieces,
                               std::span<const ChunkDecodeSegment> segments, int32_t num_seqs,
                               const ChunkDecodeGrid& grid, int32_t group,
                               double tile_us = kChunkDecodeTimes.memory_tile_us);

// The time of tiles that would take `alone_us` if the memory were infinitely fast, and `memory_us`
// if only the memory mattered. The two overlap little when they are about equally long.
double WithMemoryUs(double alone_us, double memory_us);

// The time at which clusters end that have one sequence each, or parts. `full` is the full grid of
// the device, on which the memory takes `tile_us` for a tile.
double ClustersUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& clusters,
                  const ChunkDecodeGrid& full, int32_t head_dim, int32_t group,
                  double tile_us = kChunkDecodeTimes.memory_tile_us);

// How long warps take to add `states` partial states of run lanes for each sequence.
double RunStatesUs(int64_t states, int32_t num_seqs, const ChunkDecodeGrid& warps, int32_t group);

// The most tiles that a part of a sequence has if warp lanes take parts: the number with which a
// sequence of `longest` tiles ends first, but at least the number that each lane gets when all
// `tiles` are divided equally. All tiles if parts would gain nothing.
int32_t WarpPartTiles(int32_t longest, int64_t tiles, int32_t num_seqs,
                      const ChunkDecodeGrid& warps, int32_t group);

// Returns roughly when warp lanes end if each has whole sequences, or parts of the longest ones.
double WarpsUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& warps,
               const ChunkDecodeGrid& full, int32_t group,
               double tile_us = kChunkDecodeTimes.memory_tile_us);

// Returns roughly when the lanes of the full grid end, in the fastest of three ways: the load is
// cut equally among the best number of lanes, lanes read whole sequences, or lanes read whole
// sequences and parts of the longest ones.
double LanesUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& full, int32_t group,
               double tile_us = kChunkDecodeTimes.memory_tile_us);

// The load of sequences with these numbers of tokens, which may be 0.
ChunkDecodeLoad LoadOf(std::span<const int64_t> lengths);

// The time of a tile when the fraction cached / all of the tokens comes from the L2 because other
// lanes have read them.
double SharedTileUs(double cached, double all);

// The time at which the lanes of a grid end. `full` is the full grid, on which a tile takes
// `tile_us`.
double GridUs(const ChunkDecodeLoad& load, const ChunkDecodeGrid& grid, const ChunkDecodeGrid& full,
              int32_t head_dim, int32_t group, double tile_us = kChunkDecodeTimes.memory_tile_us);

// The next smaller number of lanes that is considered when a load is cut.
constexpr int32_t FewerLanes(int32_t lanes) { return lanes * 2 / 3; }

// The time at which the last run lane of a plan ends and the other lanes may begin; 0 without run
// lanes.
double RunLanesUs(const ChunkDecodePlan& plan);

// The time at which the last of a plan's other lanes ends.
double EstimateUs(const ChunkDecodePlan& plan, int32_t group, double tile_us);

}  // namespace tokline
