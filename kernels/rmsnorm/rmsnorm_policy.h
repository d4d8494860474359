// Host decisions of RMSNorm: how wide its accesses are and how many threads share a row.
#pragma once

#include <cstdint>

#include "kernels/rmsnorm/rmsnorm.h"

namespace tokline {

struct RmsNormPlan {
  int32_t width = 1;             // elements an access: 8 (16 bytes) or 1
  int32_t threads_per_row = 32;  // 32: a warp a row; 256: a block a row
  int32_t rows_per_block = 1;
  int64_t blocks = 0;
};

RmsNormPlan PlanRmsNorm(const RmsNormParams& params);

// What a launch needs beyond Validate: a CUDA dtype.
void ValidateLaunch(const RmsNormParams& params);

}  // namespace tokline
