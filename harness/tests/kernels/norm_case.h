// A norm over host tensors, and the interval in which each of its results must lie.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/norm/norm.h"

namespace tokline::testing {

struct NormSetup {
  NormKind kind = NormKind::kRms;
  DType dtype = DType::kBf16;
  int64_t tokens = 1, hidden = 64;
  bool add = false;
  int64_t pad = 0;    // elements between the end of a row and the next
  double offset = 0;  // added to every element of x: a mean that is large relative to the spread
  uint64_t seed = 1;
};

class NormCase {
 public:
  // Padding, and one row after the last token, are NaN: none of it may be read.
  explicit NormCase(const NormSetup& problem)
      : setup(problem),
        x(Rows(setup.seed, setup.offset)),
        add(Rows(setup.seed + 1, 0)),
        weight(RandomTensor(setup.dtype, setup.hidden, setup.seed + 2, IsLayer() ? 3 : 30)),
        bias(RandomTensor(setup.dtype, setup.hidden, setup.seed + 3)) {}

  NormSetup setup;
  HostTensor x, add, weight, bias;

  bool IsLayer() const { return setup.kind == NormKind::kLayer; }
  int64_t Stride() const { return setup.hidden + setup.pad; }

  // Returns a tensor with the rows' shape, filled with NaN.
  HostTensor NewOut() const {
    HostTensor out(setup.dtype, (setup.tokens + 1) * Stride());
    out.FillNan();
    return out;
  }

  // The pointers are those of the host tensors; CUDA tests replace them.
  NormParams Params(void* residual_out, void* out) const {
    return {.kind = setup.kind,
            .dtype = setup.dtype,
            .num_tokens = setup.tokens,
            .hidden_size = setup.hidden,
            .eps = kEps,
            .x = x.data(),
            .x_stride = Stride(),
            .add = setup.add ? add.data() : nullptr,
            .add_stride = Stride(),
            .weight = weight.data(),
            .bias = IsLayer() ? bias.data() : nullptr,
            .residual_out = setup.add ? residual_out : nullptr,
            .residual_out_stride = Stride(),
            .out = out,
            .out_stride = Stride()};
  }

  // Expects nothing written outside the rows, exact sums, and each result to be right.
  ::testing::AssertionResult Check(const HostTensor& residual_out, const HostTensor& out) const {
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t t = i / Stride(), column = i % Stride();
      const bool inside = t < setup.tokens && column < setup.hidden;
      if (!inside && !(std::isnan(out[i]) && std::isnan(residual_out[i]))) {
        return ::testing::AssertionFailure()
               << "row " << t << ", column " << column << " lies beside the rows, but was written";
      }
    }
    return IsLayer() ? CheckLayer(out) : CheckRms(residual_out, out);
  }

  static constexpr float kEps = 1e-5f;
  static constexpr double kUnits = 16;

 private:
  // Each result is round(round(s * scale) * weight) for a scale within 4 units of 2^-23 of the
  // exact one. That usually allows a single value and rarely its neighbour too.
  ::testing::AssertionResult CheckRms(const HostTensor& residual_out, const HostTensor& out) const {
    for (int64_t t = 0; t < setup.tokens; ++t) {
      std::vector<double> s(setup.hidden);
      double squares = 0;
      for (int64_t i = 0; i < setup.hidden; ++i) {
        const int64_t at = t * Stride() + i;
        s[i] = setup.add ? RoundTo(setup.dtype, x[at] + add[at]) : x[at];
        squares += s[i] * s[i];
        if (setup.add && residual_out[at] != s[i]) {
          return ::testing::AssertionFailure() << "row " << t << ", column " << i << ": sum "
                                               << residual_out[at] << ", expected " << s[i];
        }
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(setup.hidden) + kEps);
      for (int64_t i = 0; i < setup.hidden; ++i) {
        const auto result = [&](double factor) {
          const double n = RoundTo(setup.dtype, s[i] * scale * factor);
          return RoundTo(setup.dtype, n * weight[i]);
        };
        const double a = result(1 - 0x1p-21), b = result(1 + 0x1p-21);
        const double actual = out[t * Stride() + i];
        if (actual != a && actual != b) {
          return ::testing::AssertionFailure()
                 << "row " << t << ", column " << i << ": " << actual << ", expected " << a
                 << " or " << b << ", seed " << setup.seed;
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

  // Each result is within half an ulp of the exact one, plus kUnits fp32 roundings of its terms: of
  // x and the mean before they cancel, of the product, and of the bias. Most of those cancel: the
  // root mean square of the errors is that of the last rounding and of a quarter of them.
  ::testing::AssertionResult CheckLayer(const HostTensor& out) const {
    std::vector<double> actual, exact, variance;
    for (int64_t t = 0; t < setup.tokens; ++t) {
      double sum = 0, magnitude = 0, squares = 0;
      for (int64_t i = 0; i < setup.hidden; ++i) {
        sum += x[t * Stride() + i];
        magnitude += std::abs(x[t * Stride() + i]);
      }
      const auto size = static_cast<double>(setup.hidden);
      const double mean = sum / size;
      for (int64_t i = 0; i < setup.hidden; ++i) {
        squares += std::pow(x[t * Stride() + i] - mean, 2);
      }
      const double scale = 1 / std::sqrt(squares / size + kEps);
      for (int64_t i = 0; i < setup.hidden; ++i) {
        const int64_t at = t * Stride() + i;
        const double product = (x[at] - mean) * scale * weight[i];
        const double expected = product + bias[i];
        const double terms = (std::abs(x[at]) + magnitude / size) * scale * std::abs(weight[i]) +
                             std::abs(product) + std::abs(bias[i]);
        const double bound = 1.01 * HalfUlp(setup.dtype, expected) + kUnits * 0x1p-24 * terms;
        actual.push_back(out[at]);
        exact.push_back(expected);
        variance.push_back(RoundingVariance(setup.dtype, expected) +
                           std::pow(kUnits / 4 * 0x1p-24 * terms, 2));
        if (!(std::abs(out[at] - expected) <= bound)) {
          return ::testing::AssertionFailure()
                 << "row " << t << ", column " << i << ": " << out[at] << ", expected " << expected
                 << " within " << bound << ", seed " << setup.seed;
        }
      }
    }
    return WithinRms(
        actual, exact, std::ssize(exact), [&](int64_t i) { return variance[i]; }, setup.seed);
  }

  HostTensor Rows(uint64_t seed, double offset) const {
    const HostTensor values = RandomTensor(setup.dtype, setup.tokens * setup.hidden, seed);
    HostTensor rows = NewOut();
    for (int64_t i = 0; i < values.size(); ++i) {
      rows.Set(i / setup.hidden * Stride() + i % setup.hidden, values[i] + offset);
    }
    return rows;
  }
};

}  // namespace tokline::testing
