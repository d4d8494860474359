#include "reference/activation.h"

#include <cmath>
#include <numbers>

#include "reference/elements.h"

namespace tokline {

void ActivationReference(const ActivationParams& params) {
  Validate(params);
  const double factor = std::sqrt(2 / std::numbers::pi);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    const int64_t in = t * params.x_stride, out = t * params.out_stride;
    for (int64_t i = 0; i < params.intermediate_size; ++i) {
      const double x = LoadElement(params.dtype, params.x, in + i);
      double result;
      if (params.kind == ActivationKind::kGatedSilu) {
        const double up = LoadElement(params.dtype, params.x, in + params.intermediate_size + i);
        result = RoundTo(params.dtype, x / (1 + std::exp(-x))) * up;
      } else {
        // x / 2 * (1 + tanh(y)) without the cancellation in 1 + tanh(y) for large negative y.
        const double y = factor * (x + 0.044715 * x * x * x);
        result = x / (1 + std::exp(-2 * y));
      }
      StoreElement(params.dtype, params.out, out + i, result);
    }
  }
}

}  // namespace tokline
