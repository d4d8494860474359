#include "harness/platform/peer_access.h"

#include <cuda_runtime_api.h>

#include "harness/platform/device.h"
#include "kernels/device/cuda_check.h"

namespace tokline {

void EnablePeerAccess(int32_t count) {
  const int there = CudaDeviceCount();
  Require(count >= 1 && count <= there, count, " GPUs were asked for; this process sees ", there);
  struct CurrentDevice {
    int device = 0;
    ~CurrentDevice() { cudaSetDevice(device); }
  } before;
  TOKLINE_CUDA(cudaGetDevice(&before.device));
  for (int from = 0; from < count; ++from) {
    TOKLINE_CUDA(cudaSetDevice(from));
    for (int to = 0; to < count; ++to) {
      if (to == from) continue;
      int can = 0;
      TOKLINE_CUDA(cudaDeviceCanAccessPeer(&can, from, to));
      if (can == 0) {
        throw RuntimeFailure(StrCat("GPU ", from, " cannot access the memory of GPU ", to));
      }
      const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
      if (code == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();  // clears the error: access was enabled before
      } else {
        TOKLINE_CUDA(code);
      }
    }
  }
}

}  // namespace tokline
