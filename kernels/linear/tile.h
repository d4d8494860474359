// Launch of Linear's kTile.
#pragma once

#include "kernels/common/launch_options.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/tile_plan.h"

namespace tokline {

// `params` has no norm_weight: the norm has run before.
void LaunchTile(const LinearParams& params, const TilePlan& plan, const LaunchOptions& options);

}  // namespace tokline
