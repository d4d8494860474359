// A LayerNorm problem over host tensors, and the bound within which each of its results must lie.
#pragma once

#include <cmath>
#include <cstdint>

#include "harness/tests/kernels/check.h"
#include "kernels/layernorm/layernorm.h"

namespace tokline::testing {

struct LayerNormSetup {
  DType dtype = DType::kBf16;
  int64_t tokens = 1, hidden = 64;
  int64_t pad = 0;    // elements between the end of a row and the next
  double offset = 0;  // added to every element of x: a mean that is large beside the spread
  uint64_t seed = 1;
};

class LayerNormCase {
 public:
  // Padding and one row more than there are tokens are NaN: none of it may be read.
  explicit LayerNormCase(const LayerNormSetup& problem)
      : setup(problem),
        x(NewOut()),
        weight(RandomTensor(setup.dtype, setup.hidden, setup.seed + 1, 3)),
        bias(RandomTensor(setup.dtype, setup.hidden, setup.seed + 2)) {
    const HostTensor values = RandomTensor(setup.dtype, setup.tokens * setup.hidden, setup.seed);
    for (int64_t i = 0; i < values.size(); ++i) {
      x.Set(i / setup.hidden * Stride() + i % setup.hidden, values[i] + setup.offset);
    }
  }

  LayerNormSetup setup;
  HostTensor x, weight, bias;

  int64_t Stride() const { return setup.hidden + setup.pad; }

  // A tensor of the rows' shape whose every element is NaN so far.
  HostTensor NewOut() const {
    HostTensor out(setup.dtype, (setup.tokens + 1) * Stride());
    out.FillNan();
    return out;
  }

  // Pointers are those of the host tensors; CUDA tests replace them.
  LayerNormParams Params(void* out) const {
    return {.dtype = setup.dtype,
            .num_tokens = setup.tokens,
            .hidden_size = setup.hidden,
            .eps = kEps,
            .x = x.data(),
            .x_stride = Stride(),
            .weight = weight.data(),
            .bias = bias.data(),
            .out = out,
            .out_stride = Stride()};
  }

  // Each result is within half a unit of its last place of the exact one, and kUnits fp32 roundings
  // of its terms: of x and the mean before they cancel, of the product, and of the bias. Nothing is
  // written beside the rows.
  ::testing::AssertionResult Check(const HostTensor& out) const {
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t t = i / Stride(), column = i % Stride();
      if (t < setup.tokens && column < setup.hidden) continue;
      if (!std::isnan(out[i])) {
        return ::testing::AssertionFailure()
               << "row " << t << ", column " << column << " lies beside the rows, but was written";
      }
    }
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
        if (!(std::abs(out[at] - expected) <= bound)) {
          return ::testing::AssertionFailure()
                 << "row " << t << ", column " << i << ": " << out[at] << ", expected " << expected
                 << " within " << bound << ", seed " << setup.seed;
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

  static constexpr float kEps = 1e-5f;
  static constexpr double kUnits = 16;
};

}  // namespace tokline::testing
