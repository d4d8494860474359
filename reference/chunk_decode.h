// Reference of chunk_decode: attention in double, straight from the definition.
#pragma once

#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// Same params over host pointers; plan and workspace are not used. dtype may be f32 too.
void ChunkDecodeReference(const ChunkDecodeParams& params);

}  // namespace tokline
