// CPU reference of chunk_decode: attention in double, directly from the definition.
#pragma once

#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// Takes the same params with host pointers; plan and workspace are not used. dtype may also be f32.
void ChunkDecodeReference(const ChunkDecodeParams& params);

}  // namespace tokline
