// The one way to launch a kernel. It checks the grid, the shared memory and what the loaded code
// supports, raises the shared-memory limit, marks programmatic dependent launches, and turns a
// rejected launch into CudaError. During a rehearsal it only loads the kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/common/launch_options.h"
#include "kernels/device/cuda_check.h"
#include "kernels/device/current_device.h"
#include "kernels/device/rehearsal.h"

namespace tokline {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;      // consecutive blocks in x that form a cluster; needs HasClusters()
  bool cooperative = false;  // all blocks are resident at the same time, or the launch fails
  double bytes = 0;          // moved; set only if memory alone bounds the kernel (kLongLaunchBytes)
};

// Launches request the same split of an SM's memory between L1 and shared memory, nearly all of it
// shared, because an SM has to drain before it can change the split and thus could not start a
// kernel before its predecessor ends. Launches that move this many bytes run for about 4 us or
// longer, and usually gain more from a larger L1, in which their loads wait, than from overlapping.
// This needs CUDA 12.8; with older versions all launches have the same split.
inline constexpr double kLongLaunchBytes = 16e6;
// The percentage that such a launch leaves as shared memory, for sums and tables.
inline constexpr unsigned kLongLaunchSharedPercent = 25;

// Raises a kernel's limit on dynamic shared memory. It never lowers a limit, because another thread
// may be about to launch with the limit that it has just set. Throws InvalidArgument, which states
// what a block needs and what the device offers, when the device does not have enough. The
// attributes of the kernel are read only in that case, not in every launch.
inline void AllowSharedBytes(const void* kernel, size_t dynamic_bytes, const DeviceFacts& device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, size_t> limits;  // by kernel and device
  int ordinal = 0;
  TOKLINE_CUDA(cudaGetDevice(&ordinal));
  const std::lock_guard lock(mutex);
  size_t& limit = limits[{kernel, ordinal}];
  if (dynamic_bytes <= limit) return;
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(dynamic_bytes));
  if (code == cudaSuccess) {
    limit = dynamic_bytes;
    return;
  }
  cudaGetLastError();  // clears the error, which is reported here
  cudaFuncAttributes attributes{};
  TOKLINE_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const auto needed = static_cast<int64_t>(attributes.sharedSizeBytes + dynamic_bytes);
  Require(needed <= device.shared_bytes_per_block, "a block needs ", needed,
          " B of shared memory, ", attributes.sharedSizeBytes,
          " B of them static; compute capability ", device.compute_major, ".", device.compute_minor,
          " gives a block at most ", device.shared_bytes_per_block, " B");
  TOKLINE_CUDA(code);
}

// A kernel gets clusters of more than eight blocks only if that is allowed for it.
inline void AllowCluster(const void* kernel, unsigned blocks) {
  if (blocks <= 8) return;
  TOKLINE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

// How many blocks of a launch the current device runs at a time, in whole clusters.
template <typename... KernelArgs>
int64_t ResidentBlocks(void (*kernel)(KernelArgs...), const LaunchShape& shape) {
  const void* const symbol = reinterpret_cast<const void*>(kernel);
  AllowSharedBytes(symbol, shape.shared_bytes, CurrentDeviceFacts());
  TOKLINE_CUDA(cudaFuncSetAttribute(symbol, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  int count = 0;
  if (shape.cluster == 1) {
    TOKLINE_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &count, symbol, static_cast<int>(shape.block.x), shape.shared_bytes));
    return int64_t{count} * CurrentDeviceFacts().sm_count;
  }
  AllowCluster(symbol, shape.cluster);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  TOKLINE_CUDA(cudaOccupancyMaxActiveClusters(&count, symbol, &config));
  return int64_t{count} * shape.cluster;
}

template <typename... KernelArgs, typename... Args>
void LaunchKernel(void (*kernel)(KernelArgs...), const LaunchShape& shape,
                  const LaunchOptions& options, Args&&... args) {
  constexpr int64_t kMaxGridYz = 65535;
  Require(shape.grid.x >= 1 && shape.grid.y >= 1 && shape.grid.z >= 1 &&
              shape.grid.y <= kMaxGridYz && shape.grid.z <= kMaxGridYz,
          "grid is ", shape.grid.x, " x ", shape.grid.y, " x ", shape.grid.z,
          "; each must be >= 1 and y, z <= 65535");
  const DeviceFacts& device = CurrentDeviceFacts();
  Require(shape.cluster <= 1 || device.HasClusters(), "the launch has clusters of ", shape.cluster,
          " blocks; they need compute capability 9.0 and code compiled for it, here ",
          device.compute_major, ".", device.compute_minor, " and code for ",
          device.code_architecture / 10, ".", device.code_architecture % 10);
  Require(shape.cluster <= 1 || shape.cluster <= static_cast<unsigned>(device.max_cluster_blocks),
          "the launch has clusters of ", shape.cluster, " blocks; the device has room for ",
          device.max_cluster_blocks);
  if (Rehearsal::IsOn()) {
    cudaFuncAttributes attributes{};
    TOKLINE_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    return;
  }
  // Unless a kernel asks for more, a block gets 48 KB including static shared memory. We reserve 8
  // KB of that for static shared memory.
  constexpr size_t kDefaultSharedLimit = 40 * 1024;
  if (shape.shared_bytes > kDefaultSharedLimit) {
    AllowSharedBytes(reinterpret_cast<const void*>(kernel), shape.shared_bytes, device);
  }
  TOKLINE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  cudaLaunchAttribute attributes[4]{};
  unsigned num_attributes = 0;
  // Code without griddepcontrol would not wait for its predecessor, so it is launched as usual and
  // starts after the predecessor has ended.
  if (options.dependent && device.HasDependentLaunch()) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
#if CUDART_VERSION >= 12080
  if (shape.bytes >= kLongLaunchBytes) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute.val.sharedMemCarveout = kLongLaunchSharedPercent;
  }
#endif
  if (shape.cluster > 1) {
    AllowCluster(reinterpret_cast<const void*>(kernel), shape.cluster);
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.cooperative) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
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
