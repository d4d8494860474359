// Launch of Linear's kernel for sm_90a.
#pragma once

#include "kernels/common/launch_options.h"
#include "kernels/linear/linear_plan.h"

namespace tokline {

// Normalises x if `params` has a norm_weight, which requires x_squares; otherwise the norm has
// already run as a separate kernel.
void LaunchWgmma(const LinearParams& params, const WgmmaPlan& plan, const LaunchOptions& options);

}  // namespace tokline
