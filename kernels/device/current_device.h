// Facts of the current device and of the code that this binary has for it.
#pragma once

#include "kernels/common/device_facts.h"

namespace tokline {

// Read once per thread and device: cheap enough for every launch. No allocation, no
// synchronisation, allowed while a stream is captured. Throws CudaError where there is no device,
// and RuntimeFailure where this binary holds no code that the device can run.
const DeviceFacts& CurrentDeviceFacts();

}  // namespace tokline
