// Host decisions for all_reduce_norm, and the layout of a rank's exchange buffer.
#pragma once

#include <cstdint>

#include "kernels/all_reduce_norm/all_reduce_norm.h"

namespace tokline {

// A packet of 16 bytes carries four 16-bit elements and twice the number of its launch.
inline constexpr int64_t kAllReducePacketBytes = 16;
inline constexpr int64_t kAllReducePacketElements = 4;

// The packets of an exchange buffer follow its header at this offset.
inline constexpr int64_t kAllReduceHeaderBytes = 256;

struct AllReduceNormPlan {
  AllReduceNormVariant variant = AllReduceNormVariant::kOneShot;
  bool vectors = false;  // 8-byte accesses
  int32_t blocks = 0;    // each takes every blocks-th row
  int32_t threads = 0;
};

// Packets in a row.
int64_t AllReducePacketsPerRow(int64_t hidden_size);

// Packets that an inbox needs: of one launch, from all peers together.
int64_t AllReduceInboxPackets(AllReduceNormVariant variant, int32_t world_size, int64_t num_tokens,
                              int64_t hidden_size);

// Packets that fit into each of the two inboxes of a buffer.
int64_t AllReduceInboxCapacity(int64_t buffer_bytes);

// The plan of a launch. `ranks_on_device` ranks share the device's multiprocessors, each of which
// runs at most one of the blocks, so that all blocks are resident.
AllReduceNormPlan PlanAllReduceNorm(const AllReduceNormParams& params, const DeviceFacts& device,
                                    int32_t ranks_on_device = 1);

}  // namespace tokline
