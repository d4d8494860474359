// How a gather is mapped to the device. Pure host code.
#pragma once

#include <cstdint>

#include "kernels/paged_gather/paged_gather.h"

namespace tokline {

inline constexpr int32_t kMaxGatherTileTokens = 128;

// Consecutive output tokens that a block copies: a power of two, about 32 KiB of K and V, which is
// eight 16-byte loads a thread, and few enough that small gathers spread over the device.
int32_t GatherTileTokens(const PagedGatherParams& params);

}  // namespace tokline
