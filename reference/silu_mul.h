// CPU reference of silu_mul.
#pragma once

#include "kernels/silu_mul/silu_mul.h"

namespace tokline {

// Host pointers; f32, bf16 and f16. Throws InvalidArgument.
void SiluMulReference(const SiluMulParams& params);

}  // namespace tokline
