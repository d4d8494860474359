// Queries about the CUDA device, and the check that it can run this suite.
#pragma once

#include <string>
#include <string_view>

#include "kernels/common/device_facts.h"

namespace tokline {

// Throws RuntimeFailure if the device is too old. The message states the device's name, its compute
// capability and the minimum (8.0).
void RequireSupportedDevice(std::string_view name, const DeviceFacts& facts);

// Number of devices that this build can run on; 0 if it has no CUDA, or there is no driver or no
// device.
int CudaDeviceCount();

// Everything below exists in CUDA builds only.

// Facts about the current device. Throws CudaError if there is none.
DeviceFacts QueryDeviceFacts();

std::string CudaDeviceName();

// Makes the device of this number the current one of this thread. Throws RuntimeFailure if there
// are devices, but none of this number.
void UseCudaDevice(int device);

// Throws RuntimeFailure with the reason unless there is a driver and a device that can run the
// suite.
void RequireUsableCudaDevice();

}  // namespace tokline
