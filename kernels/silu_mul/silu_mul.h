// SiLU(gate) * up over rows that hold gate and up side by side.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// out = round(round(g / (1 + exp(-g))) * u)
struct SiluMulParams {
  DType dtype = DType::kBf16;
  int64_t num_tokens = 0;
  int64_t intermediate_size = 0;  // a multiple of 8
  const void* gate_up = nullptr;  // [num_tokens, 2 * intermediate_size]: gate | up, 16 B aligned
  int64_t gate_up_stride = 0;     // elements between rows
  void* out = nullptr;            // [num_tokens, intermediate_size], 16 B aligned
  int64_t out_stride = 0;
};

void Validate(const SiluMulParams& params);
Cost CostOf(const SiluMulParams& params);
void Launch(const SiluMulParams& params, const LaunchOptions& options);

}  // namespace tokline
