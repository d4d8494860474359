// Host decisions for the norms: the width of accesses and the number of threads per row.
#pragma once

#include <cstdint>

#include "kernels/norm/norm.h"

namespace tokline {

// Rows per block if each warp has one row.
inline constexpr int32_t kNormWarpRowsPerBlock = 4;

struct NormPlan {
  int32_t width = 1;             // elements per access: 8 (16 bytes) or 1
  int32_t held = 0;              // accesses that a thread holds in registers: 1 or 4 if the row
                                 // fits (kRms), or 0: it is read twice
  int32_t threads_per_row = 32;  // 32: one warp per row; 128, 256 or 512: one block per row
  int32_t rows_per_block = 1;
  int64_t blocks = 0;
};

NormPlan PlanNorm(const NormParams& params);

}  // namespace tokline
