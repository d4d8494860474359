// CPU reference of paged_gather.
#pragma once

#include "kernels/paged_gather/paged_gather.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16. Throws InvalidArgument.
void PagedGatherReference(const PagedGatherParams& params);

}  // namespace tokline
