#include "harness/platform/device.h"

#include <cuda_runtime_api.h>

#include "kernels/device/cuda_check.h"
#include "kernels/device/current_device.h"

namespace tokline {

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clears the error: having no device is an answer, not a failure
    return 0;
  }
  return count;
}

DeviceFacts QueryDeviceFacts() { return CurrentDeviceFacts(); }

std::string CudaDeviceName() {
  int device = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  TOKLINE_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

void UseCudaDevice(int device) {
  const int count = CudaDeviceCount();
  if (count == 0) return;
  if (device >= count) {
    throw RuntimeFailure(
        StrCat("there is no CUDA device ", device, "; the last one is ", count - 1));
  }
  TOKLINE_CUDA(cudaSetDevice(device));
}

void RequireUsableCudaDevice() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver) {  // also returned if there is no driver at all
    cudaGetLastError();
    throw RuntimeFailure(StrCat("no CUDA device: there is no driver, or it is older than CUDA ",
                                CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10));
  }
  if (code != cudaSuccess || count == 0) {
    cudaGetLastError();  // clears the error, which is reported here
    throw RuntimeFailure(StrCat("no CUDA device: ", code == cudaSuccess
                                                        ? "the driver finds none"
                                                        : cudaGetErrorString(code)));
  }
  RequireSupportedDevice(CudaDeviceName(), QueryDeviceFacts());
}

}  // namespace tokline
