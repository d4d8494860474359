// Typed access to tensor elements for the references: everything is computed in double.
#pragma once

#include <Eigen/Core>
#include <cstdint>

#include "kernels/common/dtype.h"

namespace tokline {

inline double LoadElement(DType dtype, const void* base, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(base)[index];
    case DType::kBf16:
      return static_cast<float>(static_cast<const Eigen::bfloat16*>(base)[index]);
    case DType::kF16:
      return static_cast<float>(static_cast<const Eigen::half*>(base)[index]);
  }
  return 0;
}

// Loads `count` neighbouring elements from element `first` on.
inline void LoadElements(DType dtype, const void* base, int64_t first, int64_t count, double* to) {
  const auto load = [&]<typename T>(const T* elements) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(elements[first + i]);
  };
  switch (dtype) {
    case DType::kF32:
      return load(static_cast<const float*>(base));
    case DType::kBf16:
      return load(static_cast<const Eigen::bfloat16*>(base));
    case DType::kF16:
      return load(static_cast<const Eigen::half*>(base));
  }
}

// Rounds to nearest even.
inline void StoreElement(DType dtype, void* base, int64_t index, double value) {
  const float rounded = static_cast<float>(value);
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(base)[index] = rounded;
      break;
    case DType::kBf16:
      static_cast<Eigen::bfloat16*>(base)[index] = Eigen::bfloat16(rounded);
      break;
    case DType::kF16:
      static_cast<Eigen::half*>(base)[index] = Eigen::half(rounded);
      break;
  }
}

// Returns `value` rounded to `dtype` and converted back.
inline double RoundTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kBf16:
      return static_cast<float>(Eigen::bfloat16(static_cast<float>(value)));
    case DType::kF16:
      return static_cast<float>(Eigen::half(static_cast<float>(value)));
  }
  return 0;
}

}  // namespace tokline
