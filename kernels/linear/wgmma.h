// Launch of Linear's kernel for sm_90a.
#pragma once

#include "kernels/common/launch_options.h"
#include "kernels/linear/linear_plan.h"

namespace tokline {

// Normalises x if `params` has a norm_weight, for which it needs x_squares; otherwise the norm has
// run before, as a kernel of its own.
void LaunchWgmma(const LinearParams& params, const WgmmaPlan& plan, const LaunchOptions& options);

}  // namespace tokline
