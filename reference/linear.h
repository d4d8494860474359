// CPU reference of Linear.
#pragma once

#include "kernels/linear/linear.h"

namespace tokline {

// Host pointers; f32, bf16 and f16; `variant`, `matmul` and `workspace` are not used. The residual
// is added after y is rounded, as kSkinny does. Throws InvalidArgument.
void LinearReference(const LinearParams& params);

}  // namespace tokline
