#include "harness/decoder/convert_elements.h"

#include <Eigen/Core>
#include <cstring>

namespace tokline {
namespace {

template <typename From, typename To>
void Convert(const void* src, void* dst, int64_t count) {
  const auto* bytes = static_cast<const char*>(src);
  auto* out = static_cast<To*>(dst);
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    out[i] = static_cast<To>(static_cast<float>(value));
  }
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

}  // namespace tokline
