#include "reference/silu_mul.h"

#include <cmath>

#include "reference/elements.h"

namespace tokline {

void SiluMulReference(const SiluMulParams& params) {
  Validate(params);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    const int64_t in = t * params.gate_up_stride, out = t * params.out_stride;
    for (int64_t i = 0; i < params.intermediate_size; ++i) {
      const double gate = LoadElement(params.dtype, params.gate_up, in + i);
      const double up =
          LoadElement(params.dtype, params.gate_up, in + params.intermediate_size + i);
      const double silu = RoundTo(params.dtype, gate / (1 + std::exp(-gate)));
      StoreElement(params.dtype, params.out, out + i, silu * up);
    }
  }
}

}  // namespace tokline
