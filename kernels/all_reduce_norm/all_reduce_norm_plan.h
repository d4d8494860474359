// Host decisions for all_reduce_norm, and the layout of a rank's exchange buffer.
#pragma once

#include <cstdint>

#include "kernels/all_reduce_norm/all_reduce_norm.h"

namespace tokline {

// Slab s belongs to rank s % world_size. Launches use two sets of flags and rows in turn. The
// slabs' part of the buffer of every rank holds
//   kAllReduceSlabFlags flags of the even launches, the same number for the odd launches,
//   the rows of the even launches, and those of the odd launches.
// The rows of a launch are the partials of the owned slabs from each source, and then the sums of
// all slabs. Its flags are in the same order.
struct AllReduceSlabs {
  int32_t rows = 0;   // of a slab; one warp per row
  int32_t slabs = 0;  // of a launch
  int32_t owned = 0;  // by the rank that owns the most

  int64_t Flags(int32_t world_size) const { return int64_t{world_size} * owned + slabs; }
};
inline constexpr int64_t kAllReduceSlabFlags = 8192;

// The result depends on nothing in which ranks may differ.
AllReduceSlabs SlabsOf(int32_t world_size, int64_t num_tokens);

struct AllReduceNormPlan {
  AllReduceNormVariant variant = AllReduceNormVariant::kOneShot;
  bool vectors = false;  // 8-byte accesses, or 16-byte ones with slabs
  int32_t blocks = 0;    // each takes every blocks-th row, or slab
  int32_t threads = 0;
  AllReduceSlabs slabs = {};  // with kSlabs
};

// Packets in a row.
int64_t AllReducePacketsPerRow(int64_t hidden_size);

// The number of packets that an inbox needs: those of one launch from all peers together.
int64_t AllReduceInboxPackets(AllReduceNormVariant variant, int32_t world_size, int64_t num_tokens,
                              int64_t hidden_size);

// The plan of a launch. `ranks_on_device` ranks share the device's multiprocessors. Each of these
// runs at most one of the blocks, or 32 warps with slabs, so that all blocks are resident.
AllReduceNormPlan PlanAllReduceNorm(const AllReduceNormParams& params, const DeviceFacts& device,
                                    int32_t ranks_on_device = 1);

}  // namespace tokline
