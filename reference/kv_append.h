// CPU reference of kv_append.
#pragma once

#include "kernels/kv_append/kv_append.h"

namespace tokline {

// Takes host pointers; f32, bf16 and f16. Throws InvalidArgument.
void KvAppendReference(const KvAppendParams& params);

}  // namespace tokline
