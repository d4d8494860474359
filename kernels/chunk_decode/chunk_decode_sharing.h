// The model of a block's time that decides whether chunks that several sequences list are read
// once, and whether sequences are cut.
#pragma once

#include <cstdint>

#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// Microseconds of one block on an H200 with 128-element bf16 heads; elsewhere their ratios count.
// From cold rows measured before this order of work, which this kernel's README gives:
// - b64_s2048 (128.2), b256_s1024 (258.6) and b32_s8192 (248.4) are 64, 128 and 128 tiles per lane
//   in 2, 8 and 1 tasks, after 2.2 of launch: a tile from memory and a task.
// - A tile that the L2 has, and a merge, which is of two rows there: README, "Clusters".
// - b64_shared16384 (246.5) and b256_shared4096 (205.4) were bound by lanes of 38.8 and 31.0 wide
//   tiles and by a block that merged 64 rows: 5.24 per tile, if a row took 0.61.
// The model errs against sharing: it charges a merged row what it costs alone, and a tile that
// others have read what it costs from the L2.
struct ChunkDecodeTimes {
  double memory_tile_us = 1.94;
  double cached_tile_us = 1.3;
  double wide_tile_us = 5.24;  // of more than 16 query rows
  double task_us = 0.9;
  double merged_row_us = 1.25;
  // What equal shares take beyond their tiles, tasks and one merge, where nearly every sequence is
  // cut: 33 to 60 sequences of 128 to 256 tokens, and 40 to 112 of 512, in a decode step (README).
  double cut_us = 2.5;
  // A plan that reads once is taken if it ends so much earlier. A guess: by the model 2 x 4,096
  // shared tokens of Qwen3-0.6B gain 1.9, but took 2 more per layer (results/h200/sharing.jsonl,
  // one pair of runs, of which equal ones differ by as much).
  double least_gain_us = 4;
};

inline constexpr ChunkDecodeTimes kChunkDecodeTimes;

// How many of the `members` that are left read a shared run in one task: those that fill one tile
// of query rows if three such tiles hold all members, which is faster than wide tiles; otherwise as
// many as a task may have.
int32_t SharedPartMembers(int32_t members, int32_t group);
// How many tasks read the run.
int32_t NumSharedParts(int32_t members, int32_t group);

// When the last lane ends. `tile_us` is the time of a tile of at most 16 query rows.
double EstimateUs(const ChunkDecodePlan& plan, int32_t group, double tile_us);

}  // namespace tokline
