// Converts the elements of weights from a checkpoint's dtype to that of the computation.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace tokline {

// Rounds to nearest even. `src` may have any alignment. Throws InvalidArgument, which states the
// number, if a finite one is too large for fp16.
void ConvertElements(DType from, const void* src, DType to, void* dst, int64_t count);

// Same as ConvertElements, for a matrix with the given strides in elements. `dst` is dense.
void ConvertMatrix(DType from, const void* src, int64_t row_stride, int64_t column_stride, DType to,
                   void* dst, int64_t rows, int64_t columns);

}  // namespace tokline
