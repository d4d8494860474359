// Scales a vector: the smallest kernel that add_kernel() takes.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// y = round(scale * x).
struct ToyParams {
  DType dtype = DType::kBf16;
  int64_t size = 0;
  float scale = 1;
  const void* x = nullptr;  // [size]
  void* y = nullptr;        // [size]
};

void Validate(const ToyParams& params);
Cost CostOf(const ToyParams& params);
void Launch(const ToyParams& params, const LaunchOptions& options);

}  // namespace tokline
