// What the blocks of the second kernel know about a row.
#pragma once

#include <cstdint>

#include "kernels/sampling/logits_device.cuh"

namespace tokline {

// Every logit of a row, which is in L2.
struct RowSource {
  const float* logits;
  int32_t vocab_size;
  bool vector_loads;
};

// One row's rule and values derived from it; uniform across the block.
struct RowContext {
  RowSource row;
  const ChunkStats* stats;
  const float* group_maxima;
  int32_t num_chunks;
  int32_t num_groups;
  SamplingRule rule;
  MassOf mass_of;
  float highest;  // the row's largest logit
  float lowest;   // logits below this have no mass
  int32_t* token;
  int32_t ranks, rank;    // the blocks that can share the row, and this one's place among them
  uint64_t row_mass = 0;  // of all logits; only for top-p without top-k
};

}  // namespace tokline
