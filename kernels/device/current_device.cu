// Queries what a device is and what the code that runs on it was compiled for.
#include "kernels/device/current_device.h"

#include <cuda_runtime.h>

#include "kernels/device/cuda_check.h"

namespace tokline {
namespace {

constexpr int kProbeThreadsSm90a = 64;

// This kernel is never launched. Its thread bound reveals which code the driver selected:
// cudaFuncGetAttributes reports the architecture, but not whether the code is for sm_90a, which has
// Hopper's architecture-specific features.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__global__ void __launch_bounds__(kProbeThreadsSm90a) CodeProbeKernel() {}
#else
__global__ void __launch_bounds__(kProbeThreadsSm90a / 2) CodeProbeKernel() {}
#endif

// The blocks of the largest cluster that the current device can launch.
int LargestCluster() {
  TOKLINE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(CodeProbeKernel),
                                    cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(32);
  int blocks = 0;
  TOKLINE_CUDA(cudaOccupancyMaxPotentialClusterSize(&blocks, CodeProbeKernel, &config));
  return blocks;
}

DeviceFacts ReadDeviceFacts(int device) {
  const auto attribute = [device](cudaDeviceAttr name) {
    int value = 0;
    TOKLINE_CUDA(cudaDeviceGetAttribute(&value, name, device));
    return value;
  };
  DeviceFacts facts{.sm_count = attribute(cudaDevAttrMultiProcessorCount),
                    .compute_major = attribute(cudaDevAttrComputeCapabilityMajor),
                    .compute_minor = attribute(cudaDevAttrComputeCapabilityMinor),
                    .l2_bytes = attribute(cudaDevAttrL2CacheSize),
                    .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                    .shared_bytes_per_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
  cudaFuncAttributes probe{};
  const cudaError_t code =
      cudaFuncGetAttributes(&probe, reinterpret_cast<const void*>(CodeProbeKernel));
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();  // clear the error: it is reported here
    throw RuntimeFailure(StrCat("this build holds no code for compute capability ",
                                facts.compute_major, ".", facts.compute_minor,
                                "; build it with CMAKE_CUDA_ARCHITECTURES=", facts.compute_major,
                                facts.compute_minor, ", or 80 for 8.0 and everything newer"));
  }
  TOKLINE_CUDA(code);
  // ptxVersion is the version of the virtual architecture, even when the machine code was compiled
  // from it ahead of time.
  facts.code_architecture = probe.ptxVersion;
  facts.code_is_sm90a = probe.maxThreadsPerBlock == kProbeThreadsSm90a;
  if (facts.HasClusters()) facts.max_cluster_blocks = LargestCluster();
  return facts;
}

}  // namespace

const DeviceFacts& CurrentDeviceFacts() {
  struct Known {
    int device = -1;
    DeviceFacts facts;
  };
  thread_local Known known;
  // Every launch calls this. With a single device there is no need to ask which one is current.
  static const bool one_device = [] {
    int count = 0;
    TOKLINE_CUDA(cudaGetDeviceCount(&count));
    return count == 1;
  }();
  if (one_device && known.device >= 0) return known.facts;
  int device = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  if (device != known.device) known = {device, ReadDeviceFacts(device)};
  return known.facts;
}

}  // namespace tokline
