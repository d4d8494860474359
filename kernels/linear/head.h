// Launch of Linear's kHead.
#pragma once

#include "kernels/common/launch_options.h"
#include "kernels/linear/head_plan.h"
#include "kernels/linear/linear.h"

namespace tokline {

// `params` has no norm_weight: the norm has run before.
void LaunchHead(const LinearParams& params, const HeadPlan& plan, const LaunchOptions& options);

}  // namespace tokline
