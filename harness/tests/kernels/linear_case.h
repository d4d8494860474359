// A Linear problem over host tensors, its exact result, and the bound for each result element.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/linear/linear.h"

namespace tokline::testing {

struct LinearSetup {
  DType dtype = DType::kBf16;
  int64_t tokens = 1, in = 64, out = 64;
  bool norm = false, gated = false, bias = false, residual = false, out_f32 = false;
  bool integers = false;  // small integers, so that all sums are exact
  int64_t pad = 0;        // elements between the end of a row and the next, a multiple of 8
  uint64_t seed = 1;
};

// The elements of the activation n, and how far a correct fp32 statistic may move each of them. The
// slack is nonzero only where n is so close to a rounding boundary that either neighbour is right.
struct Normalised {
  std::vector<double> value, slack;
};

class LinearCase {
 public:
  // Padding, and one row after the last token, are NaN: none of it may be read.
  explicit LinearCase(const LinearSetup& problem)
      : setup(problem),
        x(setup.dtype, (setup.tokens + 1) * XStride()),
        norm_weight(Make(setup.in, 2, 100, 1.0)),
        weight(Make(Rows() * setup.in, 3, 3, 1 / std::sqrt(static_cast<double>(setup.in)))),
        bias(Make(Rows(), 4, 9, 0.5)),
        residual(setup.dtype, (setup.tokens + 1) * OutStride()) {
    x.FillNan();
    residual.FillNan();
    const HostTensor values = Make(setup.tokens * setup.in, 5, 3, 1.0);
    const HostTensor added = Make(setup.tokens * setup.out, 6, 9, 1.0);
    for (int64_t t = 0; t < setup.tokens; ++t) {
      for (int64_t k = 0; k < setup.in; ++k) x.Set(t * XStride() + k, values[t * setup.in + k]);
      for (int64_t i = 0; i < setup.out; ++i) {
        residual.Set(t * OutStride() + i, added[t * setup.out + i]);
      }
    }
  }

  LinearSetup setup;
  HostTensor x, norm_weight, weight, bias, residual;

  int64_t XStride() const { return setup.in + setup.pad; }
  int64_t OutStride() const { return setup.out + setup.pad; }
  int64_t Rows() const { return setup.out * (setup.gated ? 2 : 1); }
  DType OutType() const { return setup.out_f32 ? DType::kF32 : setup.dtype; }

  // Returns an output tensor filled with NaN.
  HostTensor NewOut() const {
    HostTensor out(OutType(), (setup.tokens + 1) * OutStride());
    out.FillNan();
    return out;
  }

  // The pointers are those of the host tensors; CUDA tests replace them.
  LinearParams Params(void* out) const {
    return {.dtype = setup.dtype,
            .out_f32 = setup.out_f32,
            .gated_silu = setup.gated,
            .num_tokens = setup.tokens,
            .in_features = setup.in,
            .out_features = setup.out,
            .x = x.data(),
            .x_stride = XStride(),
            .norm_weight = setup.norm ? norm_weight.data() : nullptr,
            .norm_eps = setup.norm ? kEps : 0.0f,
            .weight = weight.data(),
            .bias = setup.bias ? bias.data() : nullptr,
            .residual = setup.residual ? residual.data() : nullptr,
            .residual_stride = OutStride(),
            .out = out,
            .out_stride = OutStride()};
  }

  // n for one token. The fp32 statistic is within 4 units of 2^-23 of the exact one.
  Normalised ActivationsOf(int64_t token) const {
    Normalised n{std::vector<double>(setup.in), std::vector<double>(setup.in, 0.0)};
    double squares = 0;
    for (int64_t k = 0; k < setup.in; ++k) {
      n.value[k] = x[token * XStride() + k];
      squares += n.value[k] * n.value[k];
    }
    if (!setup.norm) return n;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(setup.in) + kEps);
    for (int64_t k = 0; k < setup.in; ++k) {
      const double s = n.value[k] * scale;
      const auto weighted = [&](double value) {
        return RoundTo(setup.dtype, RoundTo(setup.dtype, value) * norm_weight[k]);
      };
      n.value[k] = weighted(s);
      n.slack[k] = std::abs(weighted(s * (1 + 0x1p-21)) - weighted(s * (1 - 0x1p-21)));
    }
    return n;
  }

  // A value, how far from it a correct result may be, and the variance of that if roundings are
  // independent.
  struct Approximate {
    double value = 0, bound = 0, variance = 0;
    void Round(DType dtype) {
      bound += HalfUlp(dtype, value);
      variance += RoundingVariance(dtype, value);
    }
  };

  // The exact y (before rounding) of weight row `row`. Tensor cores add a group of 16 products to a
  // sum at a time: they cut every term off two bits below the last bit of the largest, and the sum
  // after its 24th bit. The latter costs less than eps |sum| a group, all in one direction; its
  // mean is half a unit in the last place, which is 0.72 eps |sum| on average over a binade. The
  // former goes either way: 17 errors of at most eps / 4 of the largest term. Allowed are the
  // groups' sums in the order of k, the condition sum once for the former and for kernels that
  // share or permute k, and the activations' slack. Simulated sums use at most 0.9 of that.
  Approximate Project(const Normalised& n, int64_t row) const {
    double sum = 0, condition = 0, moved = 0, squares = 0, moved_squares = 0, group_sums = 0;
    for (int64_t k = 0; k < setup.in; ++k) {
      const double w = weight[row * setup.in + k];
      sum += n.value[k] * w;
      if (k % kGroup == kGroup - 1 || k == setup.in - 1) group_sums += std::abs(sum);
      condition += std::abs(n.value[k] * w);
      moved += n.slack[k] * std::abs(w);
      squares += n.value[k] * w * n.value[k] * w;
      moved_squares += n.slack[k] * w * n.slack[k] * w;
    }
    if (setup.bias) {
      sum += bias[row];
      condition += std::abs(bias[row]);
    }
    const double epsilon = Epsilon(DType::kF32);
    const double truncated = 0.36 * epsilon * group_sums;
    return {.value = sum,
            .bound = epsilon * (group_sums + condition) + moved,
            .variance = truncated * truncated + epsilon * epsilon / 3 * squares + moved_squares};
  }

  // The unrounded result of every element, its bound and its variance.
  struct Expectation {
    std::vector<double> value, bound, variance;
  };
  Expectation Expect() const {
    const DType dtype = setup.dtype;
    Expectation expected;
    for (int64_t t = 0; t < setup.tokens; ++t) {
      const Normalised n = ActivationsOf(t);
      for (int64_t i = 0; i < setup.out; ++i) {
        Approximate y = Project(n, i);
        if (setup.gated) {
          Approximate up = Project(n, setup.out + i);
          // silu'| <= 1.1. Gate, silu and up are rounded along the way.
          y.Round(dtype);
          Approximate silu{.value = y.value / (1 + std::exp(-y.value)),
                           .bound = 1.1 * y.bound,
                           .variance = 1.1 * 1.1 * y.variance};
          silu.bound += 1.01 * HalfUlp(dtype, silu.value);
          silu.variance += RoundingVariance(dtype, silu.value);
          up.Round(dtype);
          y = {.value = silu.value * up.value,
               .bound =
                   silu.bound * (std::abs(up.value) + up.bound) + std::abs(silu.value) * up.bound,
               .variance =
                   silu.variance * up.value * up.value + silu.value * silu.value * up.variance};
        }
        if (setup.residual) {
          y.Round(dtype);  // before the residual is added
          y.value += residual[t * OutStride() + i];
        }
        // The rounded value may lie in the next binade.
        y.bound += HalfUlp(OutType(), std::abs(y.value) + y.bound);
        y.variance += RoundingVariance(OutType(), std::abs(y.value) + y.bound);
        expected.value.push_back(y.value);
        expected.bound.push_back(y.bound);
        expected.variance.push_back(y.variance);
      }
    }
    return expected;
  }

  // Expects every element within its bound, the root mean square of the differences within that of
  // their variances, and nothing written outside the rows.
  ::testing::AssertionResult Check(const HostTensor& out) const {
    std::vector<double> dense;
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t t = i / OutStride(), column = i % OutStride();
      if (t < setup.tokens && column < setup.out) {
        dense.push_back(out[i]);
      } else if (!std::isnan(out[i])) {
        return ::testing::AssertionFailure()
               << "row " << t << ", column " << column << " was written with " << out[i]
               << ", but lies outside [" << setup.tokens << ", " << setup.out << "]";
      }
    }
    const Expectation expected = Expect();
    const auto within = WithinBound(
        dense, expected.value, static_cast<int64_t>(dense.size()),
        [&](int64_t i) { return expected.bound[i]; }, setup.seed);
    if (!within) return within;
    return WithinRms(
        dense, expected.value, static_cast<int64_t>(dense.size()),
        [&](int64_t i) { return expected.variance[i]; }, setup.seed);
  }

  static constexpr float kEps = 1e-6f;
  static constexpr int kGroup = 16;  // products that a tensor core adds to a sum at a time

 private:
  HostTensor Make(int64_t size, uint64_t salt, int limit, double scale) const {
    const uint64_t seed = setup.seed * 1000 + salt;
    return setup.integers ? IntegerTensor(setup.dtype, size, seed, -limit, limit)
                          : RandomTensor(setup.dtype, size, seed, scale);
  }
};

}  // namespace tokline::testing
