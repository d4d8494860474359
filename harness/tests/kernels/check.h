// What kernel tests share: host tensors of any dtype, seeded fills, and a comparison against an
// elementwise bound that reports where and by how much it failed.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/common/dtype.h"
#include "reference/elements.h"

namespace tokline::testing {

class HostTensor {
 public:
  HostTensor(DType dtype, int64_t size)
      : dtype_(dtype), bytes_(static_cast<size_t>(size * SizeOf(dtype))), size_(size) {}

  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::vector<unsigned char>& bytes() { return bytes_; }
  double operator[](int64_t i) const { return LoadElement(dtype_, bytes_.data(), i); }
  void Set(int64_t i, double value) { StoreElement(dtype_, bytes_.data(), i, value); }
  void FillNan() {
    for (int64_t i = 0; i < size_; ++i) Set(i, std::numeric_limits<double>::quiet_NaN());
  }
  bool operator==(const HostTensor& other) const { return bytes_ == other.bytes_; }

 private:
  DType dtype_;
  std::vector<unsigned char> bytes_;
  int64_t size_;
};

// Normal values with standard deviation `scale`; one element in 64 is an outlier ten times as
// large.
inline HostTensor RandomTensor(DType dtype, int64_t size, uint64_t seed, double scale = 1) {
  HostTensor tensor(dtype, size);
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < size; ++i) {
    tensor.Set(i, normal(rng) * (rng() % 64 == 0 ? 10 : 1));
  }
  return tensor;
}

// Integers in [low, high], for cases in which the arithmetic is exact.
inline HostTensor IntegerTensor(DType dtype, int64_t size, uint64_t seed, int low, int high) {
  HostTensor tensor(dtype, size);
  std::mt19937_64 rng(seed);
  std::uniform_int_distribution<int> uniform(low, high);
  for (int64_t i = 0; i < size; ++i) tensor.Set(i, uniform(rng));
  return tensor;
}

// Half a unit in the last place of `dtype` at `value`, at least that of the smallest normal number.
inline double HalfUlp(DType dtype, double value) {
  const double floor = dtype == DType::kF16 ? 0x1p-14 : 0x1p-126;
  const double magnitude = std::max(std::abs(value), floor);
  return 0.5 * Epsilon(dtype) * std::exp2(std::floor(std::log2(magnitude)));
}

// Expects |actual[i] - expected[i]| <= bound(i) everywhere. NaN never passes, equal infinities do.
// Reports the first failing index, both values, the bound and the seed.
template <typename Actual, typename Expected, typename Bound>
::testing::AssertionResult WithinBound(const Actual& actual, const Expected& expected, int64_t size,
                                       const Bound& bound, uint64_t seed) {
  for (int64_t i = 0; i < size; ++i) {
    const double a = actual[i], e = expected[i];
    if (a == e) continue;
    const double b = bound(i);
    if (!(std::abs(a - e) <= b)) {
      return ::testing::AssertionFailure()
             << "index " << i << ": actual " << a << ", expected " << e << ", difference "
             << std::abs(a - e) << ", bound " << b << ", seed " << seed;
    }
  }
  return ::testing::AssertionSuccess();
}

// Expects the root mean square of the errors, each in units of the standard deviation that
// variance(i) gives it, to be at most 1.5. This detects errors that stay below every elementwise
// bound: a bound must allow for roundings that all go in the same direction, but most of them
// cancel, while those of a wrong input do not. Roundings to nearest have 1, truncations 2. That of
// 32 independent uniform errors exceeds 1.5 in less than one of a million cases, as the mean of
// their squares has a standard deviation of 0.16; of fewer errors nothing is expected.
template <typename Actual, typename Expected, typename Variance>
::testing::AssertionResult WithinRms(const Actual& actual, const Expected& expected, int64_t size,
                                     const Variance& variance, uint64_t seed) {
  constexpr int64_t kLeastSize = 32;
  constexpr double kMostRms = 1.5;
  double squares = 0;
  for (int64_t i = 0; i < size; ++i) {
    const double a = actual[i], e = expected[i];
    if (a != e) squares += (a - e) * (a - e) / variance(i);
  }
  const double rms = std::sqrt(squares / static_cast<double>(size));
  if (size < kLeastSize || rms <= kMostRms) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "the differences of " << size << " elements have a root mean square of " << rms
         << " expected deviations, at most " << kMostRms << " is allowed, seed " << seed;
}

// Variance of one rounding of `value` to `dtype`: uniform within half a unit in the last place.
inline double RoundingVariance(DType dtype, double value) {
  const double half = HalfUlp(dtype, value);
  return half * half / 3;
}

// ln(sum p^2 / (sum p)^2) of softmax weights, from the natural log-sum-exps of their scores and of
// the doubled scores. It is 0 for an empty row.
inline double SquaredWeightShare(double lse, double lse_of_doubled) {
  return std::isinf(lse) ? 0.0 : std::exp(lse_of_doubled - 2 * lse);
}

}  // namespace tokline::testing
