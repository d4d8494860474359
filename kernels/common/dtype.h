// Element types of tensors.
#pragma once

#include <cstdint>
#include <string_view>

namespace tokline {

// Storage types. CUDA kernels take kBf16 and kF16; references also take kF32.
enum class DType : uint8_t { kF32, kBf16, kF16 };

constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

// The distance from 1 to the next larger representable number.
constexpr double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-23;
    case DType::kBf16:
      return 0x1p-7;
    case DType::kF16:
      return 0x1p-10;
  }
  return 0;
}

}  // namespace tokline
