// CPU reference of RMSNorm + QKV.
#pragma once

#include "kernels/rmsnorm_qkv/rmsnorm_qkv.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16; `variant`, `matmul` and `workspace` are not used. Throws
// InvalidArgument.
void RmsNormQkvReference(const RmsNormQkvParams& params);

}  // namespace tokline
