// The activation between the two matrices of an MLP, applied to rows: gated SiLU or GELU.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/layer_kinds.h"

namespace tokline {

// kGatedSilu: a row of x holds gate and up side by side;
//   out = round(round(gate / (1 + exp(-gate))) * up).
// kGeluTanh: out = round(x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))), in fp32 with one
//   rounding.
struct ActivationParams {
  ActivationKind kind = ActivationKind::kGatedSilu;
  DType dtype = DType::kBf16;
  int64_t num_tokens = 0;
  int64_t intermediate_size = 0;  // a multiple of 8
  const void* x = nullptr;        // [num_tokens, InputSize(*this)], 16 B aligned
  int64_t x_stride = 0;           // elements between rows
  void* out = nullptr;            // [num_tokens, intermediate_size], 16 B aligned; may be x
  int64_t out_stride = 0;
};

// The number of elements in a row of x.
constexpr int64_t InputSize(const ActivationParams& params) {
  return (params.kind == ActivationKind::kGatedSilu ? 2 : 1) * params.intermediate_size;
}

void Validate(const ActivationParams& params);
Cost CostOf(const ActivationParams& params);
void Launch(const ActivationParams& params, const LaunchOptions& options);

}  // namespace tokline
