// The CUDA device as policies see it. CUDA builds only.
#pragma once

#include <string>

#include "kernels/common/device_facts.h"

namespace tokline {

// Devices that this build can run on; 0 where there is no driver or no device.
int CudaDeviceCount();

// Facts of the current device. Throws CudaError where there is none.
DeviceFacts QueryDeviceFacts();

std::string CudaDeviceName();

// Throws RuntimeFailure that says what was found and what is needed (compute capability 8.0)
// unless device 0 can run the suite.
void RequireUsableCudaDevice();

}  // namespace tokline
