// CPU reference of decode_step: the references of the ops that it consists of, one after another.
#pragma once

#include "kernels/decode_step/decode_step.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16; `parts`, `workspace` and `stamps` are not used. Throws
// InvalidArgument.
void DecodeStepReference(const DecodeStepParams& params);

}  // namespace tokline
