// Implements the conversions with one loop per pair of types, and transposes in blocks of rows.
#include "harness/engine/convert_elements.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/common/error.h"

namespace tokline {
namespace {

template <typename From, typename To>
void Convert(const void* src, void* dst, int64_t count) {
  constexpr float kTooLargeForF16 = 65520;  // this and anything larger rounds to infinity
  const auto* bytes = static_cast<const char*>(src);
  auto* out = static_cast<To*>(dst);
  float largest = 0;  // of the finite ones
  for (int64_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, bytes + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const auto value = static_cast<float>(element);
    out[i] = static_cast<To>(value);
    if constexpr (std::is_same_v<To, Eigen::half>) {
      const float size = std::abs(value);
      if (size > largest && size <= std::numeric_limits<float>::max()) largest = size;
    }
  }
  Require(largest < kTooLargeForF16, "a weight of magnitude ", largest,
          " does not fit f16, whose largest number is 65504; bf16 and f32 hold it");
}

template <typename From>
void ConvertFrom(const void* src, DType to, void* dst, int64_t count) {
  switch (to) {
    case DType::kF32:
      return Convert<From, float>(src, dst, count);
    case DType::kBf16:
      return Convert<From, Eigen::bfloat16>(src, dst, count);
    case DType::kF16:
      return Convert<From, Eigen::half>(src, dst, count);
  }
}

}  // namespace

void ConvertElements(DType from, const void* src, DType to, void* dst, int64_t count) {
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(count * SizeOf(from)));
    return;
  }
  switch (from) {
    case DType::kF32:
      return ConvertFrom<float>(src, to, dst, count);
    case DType::kBf16:
      return ConvertFrom<Eigen::bfloat16>(src, to, dst, count);
    case DType::kF16:
      return ConvertFrom<Eigen::half>(src, to, dst, count);
  }
}

void ConvertMatrix(DType from, const void* src, int64_t row_stride, int64_t column_stride, DType to,
                   void* dst, int64_t rows, int64_t columns) {
  if (column_stride == 1 && row_stride == columns) {
    ConvertElements(from, src, to, dst, rows * columns);
    return;
  }
  const auto source = [&](int64_t row, int64_t column) {
    return static_cast<const char*>(src) +
           (row * row_stride + column * column_stride) * SizeOf(from);
  };
  const auto target = [&](int64_t row, int64_t column) {
    return static_cast<char*>(dst) + (row * columns + column) * SizeOf(to);
  };
  if (column_stride == 1) {
    for (int64_t row = 0; row < rows; ++row) {
      ConvertElements(from, source(row, 0), to, target(row, 0), columns);
    }
    return;
  }
  // Only a few rows are converted at a time, so that every element of a source's cache line is used
  // while the line is still cached.
  constexpr int64_t kRowBlock = 32;
  for (int64_t first = 0; first < rows; first += kRowBlock) {
    const int64_t end = std::min(first + kRowBlock, rows);
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = first; row < end; ++row) {
        ConvertElements(from, source(row, column), to, target(row, column), 1);
      }
    }
  }
}

}  // namespace tokline
