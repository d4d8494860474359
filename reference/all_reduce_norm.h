// CPU reference of all_reduce_norm.
#pragma once

#include "kernels/all_reduce_norm/all_reduce_norm.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16. Reads the partials of all ranks, adds them in double in
// the order of the ranks, and writes what the rank of `params` gets. `variant`, the buffers of
// `peers` and `time_limit_ms` are not used. Throws InvalidArgument.
void AllReduceNormReference(const AllReduceNormParams& params);

}  // namespace tokline
