// RMSNorm and LayerNorm over rows.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/layer_kinds.h"

namespace tokline {

// kRms: s = x, or round(x + add) if `add` is given, in which case s is also stored to residual_out;
//   n = round(s / sqrt(mean(s^2) + eps)) with statistics in fp32; out = round(n * weight).
// kLayer: out = round((x - mean) / sqrt(variance + eps) * weight + bias), where variance is the
//   mean of (x - mean)^2; all in fp32 with one rounding.
struct NormParams {
  NormKind kind = NormKind::kRms;
  DType dtype = DType::kBf16;
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;  // any; 16 B vectors are used if all rows are 16 B aligned and multiples
                            // of 16 B
  float eps = 0;
  const void* x = nullptr;    // [num_tokens, hidden_size]
  int64_t x_stride = 0;       // elements between rows
  const void* add = nullptr;  // [num_tokens, hidden_size] or null; kRms only
  int64_t add_stride = 0;
  const void* weight = nullptr;  // [hidden_size]
  const void* bias = nullptr;    // [hidden_size] with kLayer, otherwise null
  void* residual_out = nullptr;  // [num_tokens, hidden_size], required with add; may be x or add
  int64_t residual_out_stride = 0;
  void* out = nullptr;  // [num_tokens, hidden_size]; may be x when add is null
  int64_t out_stride = 0;
};

void Validate(const NormParams& params);
Cost CostOf(const NormParams& params);
void Launch(const NormParams& params, const LaunchOptions& options);

}  // namespace tokline
