// Integer division and rounding upwards, for sizes and counts >= 0.
#pragma once

#include <cstdint>

namespace tokline {

constexpr int64_t DivideUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// The smallest multiple of `unit` that is at least `value`.
constexpr int64_t RoundUp(int64_t value, int64_t unit) { return DivideUp(value, unit) * unit; }

}  // namespace tokline
