// Host decisions for Linear's kHead: how the rows of a large weight are shared among blocks.
#pragma once

#include <cstdint>

#include "kernels/common/device_facts.h"

namespace tokline {

struct LinearParams;

inline constexpr int32_t kHeadRows = 128;          // weight rows per tile
inline constexpr int32_t kHeadUnit = 32;           // weight rows per copy; blocks share whole units
inline constexpr int32_t kHeadBlockK = 64;         // elements of K per stage of the ring
inline constexpr int32_t kHeadConsumerGroups = 2;  // warpgroups that multiply
inline constexpr int32_t kHeadThreads = 128 * kHeadConsumerGroups + 32;  // and the producer warp

// With more tokens the weights are not marked as the first to be evicted from the L2, since outputs
// and x take room.
inline constexpr int64_t kHeadEvictedTokens = 16;

// One block per SM multiplies all tokens with its share of the weight's rows, tile by tile.
struct HeadPlan {
  int32_t token_tile = 0;  // 64 or 128
  int32_t units = 0;       // of kHeadUnit rows; block b of the grid takes those from b * units /
                           // grid on
  int32_t grid = 0;
  int32_t k_blocks = 0;  // of kHeadBlockK
  int32_t stages = 0;    // of the ring
  int64_t shared_bytes = 0;

  // The number of parts of a block's rows for each of which it finds the largest output: warpgroups
  // share the rows of a tile of 64 tokens, and the tokens of a tile of 128.
  constexpr int32_t PartsOfBlock() const { return token_tile == 64 ? kHeadConsumerGroups : 1; }
  constexpr int32_t Parts() const { return grid * PartsOfBlock(); }
};

HeadPlan PlanHead(const LinearParams& params, const DeviceFacts& device);

}  // namespace tokline
