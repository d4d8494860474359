// How a gather is mapped to the device. Pure host code.
#pragma once

#include <cstdint>

#include "kernels/paged_gather/paged_gather.h"

namespace tokline {

inline constexpr int32_t kMaxGatherTileTokens = 128;

// The number of consecutive output tokens that a block copies. It is a power of two with about 32
// KiB of K and V, which is eight 16-byte loads per thread, and small enough that small gathers
// spread over the device.
int32_t GatherTileTokens(const PagedGatherParams& params);

}  // namespace tokline
