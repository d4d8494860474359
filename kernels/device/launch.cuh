// The one way to launch a kernel: checks the grid, raises the shared-memory limit, marks
// programmatic dependent launches, and turns a refused launch into CudaError.
#pragma once

#include <cuda_runtime.h>

#include "kernels/common/launch_options.h"
#include "kernels/device/cuda_check.h"

namespace tokline {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // consecutive blocks in x that run together; sm_90
};

template <typename... KernelArgs, typename... Args>
void LaunchKernel(void (*kernel)(KernelArgs...), const LaunchShape& shape,
                  const LaunchOptions& options, Args&&... args) {
  constexpr int64_t kMaxGridYz = 65535;
  Require(shape.grid.x >= 1 && shape.grid.y >= 1 && shape.grid.z >= 1 &&
              shape.grid.y <= kMaxGridYz && shape.grid.z <= kMaxGridYz,
          "grid is ", shape.grid.x, " x ", shape.grid.y, " x ", shape.grid.z,
          "; each must be >= 1 and y, z <= 65535");
  // Blocks get 48 KB, static shared memory included, unless asked for; 8 KB are left for the
  // latter.
  constexpr size_t kDefaultSharedLimit = 40 * 1024;
  if (shape.shared_bytes > kDefaultSharedLimit) {
    TOKLINE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shape.shared_bytes)));
  }
  // All kernels ask for the same split of L1 and shared memory: an SM has to drain to change it,
  // and could not start a kernel before its predecessor ends.
  TOKLINE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  cudaLaunchAttribute attributes[2]{};
  unsigned num_attributes = 0;
  if (options.dependent) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = options.stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  TOKLINE_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

}  // namespace tokline
