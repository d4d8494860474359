// The CUDA device as policies see it.
#pragma once

#include <string>
#include <string_view>

#include "kernels/common/device_facts.h"

namespace tokline {

// Throws RuntimeFailure, stating the device, its compute capability and the least that is needed
// (8.0), if it is too old.
void RequireSupportedDevice(std::string_view name, const DeviceFacts& facts);

// All below: CUDA builds only.

// Devices that this build can run on; 0 where there is no driver or no device.
int CudaDeviceCount();

// Facts of the current device. Throws CudaError where there is none.
DeviceFacts QueryDeviceFacts();

std::string CudaDeviceName();

// Throws RuntimeFailure that says why not, unless there is a driver and a device that can run the
// suite.
void RequireUsableCudaDevice();

}  // namespace tokline
