// An RMSNorm problem over host tensors, and the interval in which each of its results must lie.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace tokline::testing {

struct RmsNormSetup {
  DType dtype = DType::kBf16;
  int64_t tokens = 1, hidden = 64;
  bool add = false;
  int64_t pad = 0;  // elements between the end of a row and the next
  uint64_t seed = 1;
};

class RmsNormCase {
 public:
  // Padding and one row more than there are tokens are NaN: none of it may be read.
  explicit RmsNormCase(const RmsNormSetup& problem)
      : setup(problem),
        x(Rows(RandomTensor(setup.dtype, setup.tokens * setup.hidden, setup.seed))),
        add(Rows(RandomTensor(setup.dtype, setup.tokens * setup.hidden, setup.seed + 1))),
        weight(RandomTensor(setup.dtype, setup.hidden, setup.seed + 2, 30)) {}

  RmsNormSetup setup;
  HostTensor x, add, weight;

  int64_t Stride() const { return setup.hidden + setup.pad; }

  // A tensor of the rows' shape whose every element is NaN so far.
  HostTensor NewOut() const {
    HostTensor out(setup.dtype, (setup.tokens + 1) * Stride());
    out.FillNan();
    return out;
  }

  // Pointers are those of the host tensors; CUDA tests replace them.
  RmsNormParams Params(void* residual_out, void* out) const {
    return {.dtype = setup.dtype,
            .num_tokens = setup.tokens,
            .hidden_size = setup.hidden,
            .eps = kEps,
            .x = x.data(),
            .x_stride = Stride(),
            .add = setup.add ? add.data() : nullptr,
            .add_stride = Stride(),
            .weight = weight.data(),
            .residual_out = setup.add ? residual_out : nullptr,
            .residual_out_stride = Stride(),
            .out = out,
            .out_stride = Stride()};
  }

  // Each result is round(round(s * scale) * weight) for a scale within 4 units of 2^-23 of the
  // exact one, which leaves one value nearly everywhere and its neighbour rarely. The sums are
  // exact, and nothing is written beside the rows.
  ::testing::AssertionResult Check(const HostTensor& residual_out, const HostTensor& out) const {
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t t = i / Stride(), column = i % Stride();
      const bool inside = t < setup.tokens && column < setup.hidden;
      if (!inside && !(std::isnan(out[i]) && std::isnan(residual_out[i]))) {
        return ::testing::AssertionFailure()
               << "row " << t << ", column " << column << " lies beside the rows, but was written";
      }
    }
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

  static constexpr float kEps = 1e-5f;

 private:
  HostTensor Rows(const HostTensor& values) const {
    HostTensor rows = NewOut();
    for (int64_t i = 0; i < values.size(); ++i) {
      rows.Set(i / setup.hidden * Stride() + i % setup.hidden, values[i]);
    }
    return rows;
  }
};

}  // namespace tokline::testing
