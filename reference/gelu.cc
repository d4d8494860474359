#include "reference/gelu.h"

#include <cmath>
#include <numbers>

#include "reference/elements.h"

namespace tokline {

void GeluReference(const GeluParams& params) {
  Validate(params);
  const double factor = std::sqrt(2 / std::numbers::pi);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    for (int64_t i = 0; i < params.intermediate_size; ++i) {
      const double x = LoadElement(params.dtype, params.x, t * params.x_stride + i);
      // x / 2 * (1 + tanh(y)) without the cancellation of 1 + tanh(y) far below zero.
      const double y = factor * (x + 0.044715 * x * x * x);
      StoreElement(params.dtype, params.out, t * params.out_stride + i, x / (1 + std::exp(-2 * y)));
    }
  }
}

}  // namespace tokline
