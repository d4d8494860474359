// Typed access to tensor elements for the references: everything is computed in double.
#pragma once

#include <Eigen/Core>

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
