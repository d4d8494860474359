// Facts of the current device for the policies that a launcher asks. No allocation, no
// synchronisation; cheap enough for every launch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/device_facts.h"
#include "kernels/device/cuda_check.h"

namespace tokline {

inline DeviceFacts CurrentDeviceFacts() {
  int device = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  const auto attribute = [device](cudaDeviceAttr name) {
    int value = 0;
    TOKLINE_CUDA(cudaDeviceGetAttribute(&value, name, device));
    return value;
  };
  return {.sm_count = attribute(cudaDevAttrMultiProcessorCount),
          .compute_major = attribute(cudaDevAttrComputeCapabilityMajor),
          .compute_minor = attribute(cudaDevAttrComputeCapabilityMinor),
          .l2_bytes = attribute(cudaDevAttrL2CacheSize),
          .shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .shared_bytes_per_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
}

}  // namespace tokline
