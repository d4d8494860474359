// CPU reference of LayerNorm.
#pragma once

#include "kernels/layernorm/layernorm.h"

namespace tokline {

// Host pointers; f32, bf16 and f16. Throws InvalidArgument.
void LayerNormReference(const LayerNormParams& params);

}  // namespace tokline
