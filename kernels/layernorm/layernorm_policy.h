// Host decisions of LayerNorm: how wide its accesses are and how many threads share a row.
#pragma once

#include <cstdint>

#include "kernels/layernorm/layernorm.h"

namespace tokline {

struct LayerNormPlan {
  int32_t width = 1;             // elements an access: 8 (16 bytes) or 1
  int32_t threads_per_row = 32;  // 32: a warp a row; 256: a block a row
  int32_t rows_per_block = 1;
  int64_t blocks = 0;
};

LayerNormPlan PlanLayerNorm(const LayerNormParams& params);

// What a launch needs beyond Validate: a CUDA dtype.
void ValidateLaunch(const LayerNormParams& params);

}  // namespace tokline
