// CPU reference of paged_prefill in double: the oracle of the CUDA kernel and the CPU decoder's op.
#pragma once

#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// All pointers of `params` are host pointers; dtype may also be kF32; the plan is not used.
// Accumulates in double and rounds each output once. Throws InvalidArgument.
void PagedPrefillReference(const PagedPrefillParams& params);

}  // namespace tokline
