// CPU reference of toy.
#pragma once

#include "kernels/toy/toy.h"

namespace tokline {

// Host pointers; f32, bf16 and f16. Throws InvalidArgument.
void ToyReference(const ToyParams& params);

}  // namespace tokline
