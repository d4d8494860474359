// The tanh form of GELU over rows.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// out = round(x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))), in fp32 with one rounding.
struct GeluParams {
  DType dtype = DType::kBf16;
  int64_t num_tokens = 0;
  int64_t intermediate_size = 0;  // a multiple of 8
  const void* x = nullptr;        // [num_tokens, intermediate_size], 16 B aligned
  int64_t x_stride = 0;           // elements between rows
  void* out = nullptr;            // [num_tokens, intermediate_size], 16 B aligned; may be x
  int64_t out_stride = 0;
};

void Validate(const GeluParams& params);
Cost CostOf(const GeluParams& params);
void Launch(const GeluParams& params, const LaunchOptions& options);

}  // namespace tokline
