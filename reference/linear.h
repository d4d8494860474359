// CPU reference of Linear.
#pragma once

#include "kernels/linear/linear.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16; `variant`, `matmul` and `workspace` are not used. The
// residual is added after y is rounded, as in kSkinny. Throws InvalidArgument.
void LinearReference(const LinearParams& params);

}  // namespace tokline
