// The launch of the kernel of run lanes.
#pragma once

#include "kernels/chunk_decode/arguments_device.cuh"
#include "kernels/common/launch_options.h"

namespace tokline::chunk_decode {

void LaunchSharedRuns(const Arguments& arguments, const LaunchOptions& options);

}  // namespace tokline::chunk_decode
