// Launch of Linear's kernel for sm_90a.
#pragma once

#include "kernels/common/launch_options.h"
#include "kernels/linear/linear_policy.h"

namespace tokline {

// `params` has a norm only where the plan fuses it.
void LaunchWgmma(const LinearParams& params, const WgmmaPlan& plan, const LaunchOptions& options);

}  // namespace tokline
