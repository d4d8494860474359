// CPU reference of embedding.
#pragma once

#include "kernels/embedding/embedding.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16. Throws InvalidArgument.
void EmbeddingReference(const EmbeddingParams& params);

}  // namespace tokline
