// LayerNorm over rows: mean, variance, weight and bias.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// out = round((x - mean) / sqrt(variance + eps) * weight + bias), where variance is the mean of
// (x - mean)^2; all in fp32 with one rounding.
struct LayerNormParams {
  DType dtype = DType::kBf16;
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;  // any; rows that are 16 B aligned multiples run with 16 B vectors
  float eps = 0;
  const void* x = nullptr;       // [num_tokens, hidden_size]
  int64_t x_stride = 0;          // elements between rows
  const void* weight = nullptr;  // [hidden_size]
  const void* bias = nullptr;    // [hidden_size]
  void* out = nullptr;           // [num_tokens, hidden_size]; may be x
  int64_t out_stride = 0;
};

void Validate(const LayerNormParams& params);
Cost CostOf(const LayerNormParams& params);
void Launch(const LayerNormParams& params, const LaunchOptions& options);

}  // namespace tokline
