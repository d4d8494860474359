// Element conversion of weights on their way from a checkpoint to the dtype of the computation.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace tokline {

// `src` may have any alignment. Rounds to nearest even.
void ConvertElements(DType from, const void* src, DType to, void* dst, int64_t count);

}  // namespace tokline
