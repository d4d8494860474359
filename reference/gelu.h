// CPU reference of gelu.
#pragma once

#include "kernels/gelu/gelu.h"

namespace tokline {

// Host pointers; f32, bf16 and f16. Throws InvalidArgument.
void GeluReference(const GeluParams& params);

}  // namespace tokline
