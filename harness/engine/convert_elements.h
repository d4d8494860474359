// Element conversion of weights on their way from a checkpoint to the dtype of the computation.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace tokline {

// `src` may have any alignment. Rounds to nearest even.
void ConvertElements(DType from, const void* src, DType to, void* dst, int64_t count);

// The same for a matrix whose rows and columns lie so many elements apart; `dst` is dense.
void ConvertMatrix(DType from, const void* src, int64_t row_stride, int64_t column_stride, DType to,
                   void* dst, int64_t rows, int64_t columns);

}  // namespace tokline
