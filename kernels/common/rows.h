// Checks of tensors whose rows lie a stride apart, in elements. The stride of a single row is
// ignored.
#pragma once

#include <cstdint>

#include "kernels/common/error.h"

namespace tokline {

// Throws InvalidArgument if rows of `row` elements would overlap. `row_name` says what `row` is.
inline void RequireStride(int64_t rows, int64_t stride, const char* stride_name, int64_t row,
                          const char* row_name) {
  Require(rows <= 1 || stride >= row, stride_name, " is ", stride, "; it must be at least ",
          row_name, ", ", row);
}

// Throws InvalidArgument if one tensor is given twice, with two strides. `names` has both names.
inline void RequireOneStride(int64_t rows, const void* a, int64_t a_stride, const void* b,
                             int64_t b_stride, const char* names) {
  Require(a != b || rows <= 1 || a_stride == b_stride, names, " are one tensor, but have strides ",
          a_stride, " and ", b_stride);
}

}  // namespace tokline
