// CPU reference of the activations.
#pragma once

#include "kernels/activation/activation.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16. Throws InvalidArgument.
void ActivationReference(const ActivationParams& params);

}  // namespace tokline
