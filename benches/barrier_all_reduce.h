// The custom all-reduce of other engines, as a peer for comparison: blocks of all GPUs meet at a
// barrier of flags, read each other's partials over the links, add them, and meet again, so that no
// partial is overwritten while it is read (the one-shot kernel of vLLM's custom_all_reduce.cuh). It
// only computes the sum. CUDA builds only.
#pragma once

#include <cstdint>

#include "kernels/all_reduce_norm/all_reduce_norm.h"
#include "kernels/common/launch_options.h"

namespace tokline::bench {

// A rank's flags, which all ranks zero before the first launch of any.
inline constexpr int64_t kBarrierBytes = 64 * 1024;

// out = the sum of `elements` bf16 partials of all ranks, in fp32 in their order, rounded once.
// `partials` and `barriers` are those of all ranks, which this rank's device can access, 16 B
// aligned; elements is a multiple of 8. Launches of all ranks must run at the same time.
void LaunchBarrierAllReduce(int32_t world_size, int32_t rank,
                            const void* const (&partials)[kMaxRanks],
                            void* const (&barriers)[kMaxRanks], int64_t elements, void* out,
                            CUstream_st* stream);

}  // namespace tokline::bench
