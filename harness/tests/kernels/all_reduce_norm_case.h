// The partials of several ranks in host tensors, and what each rank must get.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/all_reduce_norm/all_reduce_norm.h"

namespace tokline::testing {

struct AllReduceSetup {
  DType dtype = DType::kBf16;
  int32_t ranks = 2;
  int64_t tokens = 1, hidden = 64;
  int64_t pad = 0;  // elements between the end of a row and the next
  bool residual = true;
  bool norm = true;
  AllReduceNormVariant variant = AllReduceNormVariant::kAuto;
  uint64_t seed = 1;
};

class AllReduceCase {
 public:
  // Padding, and one row after the last token, are NaN: none of it may be read.
  explicit AllReduceCase(const AllReduceSetup& problem)
      : setup(problem),
        residual(Rows(setup.seed)),
        weight(RandomTensor(setup.dtype, setup.hidden, setup.seed + 1, 30)) {
    for (int32_t r = 0; r < setup.ranks; ++r) partials.push_back(Rows(setup.seed + 2 + r));
  }

  AllReduceSetup setup;
  std::vector<HostTensor> partials;
  HostTensor residual, weight;

  int64_t Stride() const { return setup.hidden + setup.pad; }

  // Returns a tensor with the rows' shape, filled with NaN.
  HostTensor NewOut() const {
    HostTensor out(setup.dtype, (setup.tokens + 1) * Stride());
    out.FillNan();
    return out;
  }

  // The pointers are those of the host tensors; CUDA tests replace them and set the buffers.
  AllReduceNormParams Params(int32_t rank, void* residual_out, void* out) const {
    AllReduceNormParams params{.dtype = setup.dtype,
                               .variant = setup.variant,
                               .num_tokens = setup.tokens,
                               .hidden_size = setup.hidden,
                               .eps = kEps,
                               .partial_stride = Stride(),
                               .residual = setup.residual ? residual.data() : nullptr,
                               .residual_stride = Stride(),
                               .weight = setup.norm ? weight.data() : nullptr,
                               .residual_out = residual_out,
                               .residual_out_stride = Stride(),
                               .out = setup.norm ? out : nullptr,
                               .out_stride = Stride(),
                               .peers = {.world_size = setup.ranks, .rank = rank}};
    for (int32_t r = 0; r < setup.ranks; ++r) params.partials[r] = partials[r].data();
    return params;
  }

  // The sum as the contract says: in fp32, in the order of the ranks, rounded once.
  double SumAt(int64_t at) const {
    auto sum = static_cast<float>(partials[0][at]);
    for (int32_t r = 1; r < setup.ranks; ++r) sum += static_cast<float>(partials[r][at]);
    if (setup.residual) sum += static_cast<float>(residual[at]);
    return RoundTo(setup.dtype, sum);
  }

  // Expects nothing written outside the rows, exact sums, and each norm to be
  // round(round(s * scale) * weight) for a scale within 4 units of 2^-23 of the exact one.
  ::testing::AssertionResult Check(const HostTensor& residual_out, const HostTensor& out) const {
    for (int64_t i = 0; i < out.size(); ++i) {
      const bool inside = i / Stride() < setup.tokens && i % Stride() < setup.hidden;
      if ((!inside && !std::isnan(residual_out[i])) ||
          (!(inside && setup.norm) && !std::isnan(out[i]))) {
        return Failure(i) << "lies beside the rows, but was written";
      }
    }
    for (int64_t t = 0; t < setup.tokens; ++t) {
      double squares = 0;
      for (int64_t i = t * Stride(); i < t * Stride() + setup.hidden; ++i) {
        const double s = SumAt(i);
        squares += s * s;
        if (residual_out[i] != s) {
          return Failure(i) << "sum " << residual_out[i] << ", expected " << s;
        }
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(setup.hidden) + kEps);
      for (int64_t c = 0; setup.norm && c < setup.hidden; ++c) {
        const int64_t at = t * Stride() + c;
        const auto result = [&](double factor) {
          return RoundTo(setup.dtype, RoundTo(setup.dtype, SumAt(at) * scale * factor) * weight[c]);
        };
        const double a = result(1 - 0x1p-21), b = result(1 + 0x1p-21);
        if (out[at] != a && out[at] != b) {
          return Failure(at) << out[at] << ", expected " << a << " or " << b;
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

  static constexpr float kEps = 1e-5f;

 private:
  ::testing::AssertionResult Failure(int64_t at) const {
    return ::testing::AssertionFailure()
           << setup.ranks << " ranks, " << setup.tokens << " x " << setup.hidden << " "
           << Name(setup.dtype) << ", " << Name(setup.variant) << ", seed " << setup.seed
           << ", row " << at / Stride() << ", column " << at % Stride() << ": ";
  }

  HostTensor Rows(uint64_t seed) const {
    const HostTensor values = RandomTensor(setup.dtype, setup.tokens * setup.hidden, seed);
    HostTensor rows = NewOut();
    for (int64_t i = 0; i < values.size(); ++i) {
      rows.Set(i / setup.hidden * Stride() + i % setup.hidden, values[i]);
    }
    return rows;
  }
};

}  // namespace tokline::testing
