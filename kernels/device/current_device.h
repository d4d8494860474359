// Facts about the current device and about the code that this binary holds for it.
#pragma once

#include "kernels/common/device_facts.h"

namespace tokline {

// The facts are queried once per thread and device, so this is cheap enough for every launch. It
// neither allocates nor synchronises and is allowed during stream capture. Throws CudaError when
// there is no device, and RuntimeFailure when this binary holds no code that the device can run.
const DeviceFacts& CurrentDeviceFacts();

}  // namespace tokline
