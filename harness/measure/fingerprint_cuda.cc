// Asks the CUDA runtime what identifies the GPUs of a record.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "harness/measure/fingerprint.h"
#include "kernels/device/cuda_check.h"
#include "kernels/device/nccl_library.h"

namespace tokline {
namespace {

std::string CudaVersionText(int version) {
  return StrCat(version / 1000, ".", version % 1000 / 10);
}

// The version of cuBLASLt that the process has loaded or is linked with; "" if there is none.
std::string CublasLtVersion() {
  using Function = size_t (*)();
  const auto version = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "cublasLtGetVersion"));
  return version == nullptr ? "" : std::to_string(version());
}

// Whether contexts on the device are shared through an MPS server; older drivers cannot tell.
std::optional<bool> UsesMps(int device) {
  int enabled = 0;
  if (cudaDeviceGetAttribute(&enabled, cudaDevAttrMpsEnabled, device) == cudaSuccess) {
    return enabled != 0;
  }
  static_cast<void>(cudaGetLastError());  // must not surface as an error of the next call
  return std::nullopt;
}

}  // namespace

GpuIdentity IdentifyGpu() {
  int device = 0;
  TOKLINE_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  TOKLINE_CUDA(cudaGetDeviceProperties(&properties, device));
  char bus_id[32] = {};
  TOKLINE_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device));
  const GpuSetup setup = ReadGpuSetup(bus_id);
  int driver = 0;
  int runtime = 0;
  TOKLINE_CUDA(cudaDriverGetVersion(&driver));
  TOKLINE_CUDA(cudaRuntimeGetVersion(&runtime));
  return {.name = properties.name,
          .uuid_hash = HashText({properties.uuid.bytes, sizeof(properties.uuid.bytes)}),
          .pci_bus_id = bus_id,
          .compute_capability = StrCat(properties.major, ".", properties.minor),
          .sm_count = properties.multiProcessorCount,
          .l2_bytes = properties.l2CacheSize,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .driver = DriverVersion(),
          .cuda_driver = CudaVersionText(driver),
          .cuda_runtime = CudaVersionText(runtime),
          .cublaslt = CublasLtVersion(),
          .max_sm_clock_mhz = setup.max_sm_clock_mhz,
          .mig = setup.mig,
          .mps = UsesMps(device),
          .nvlinks = setup.nvlinks};
}

GpuGroup IdentifyGpus(int32_t count) {
  int before = 0;
  TOKLINE_CUDA(cudaGetDevice(&before));
  GpuGroup group;
  for (int from = 0; from < count; ++from) {
    TOKLINE_CUDA(cudaSetDevice(from));
    group.gpus.push_back(IdentifyGpu());
    for (int to = 0; to < from; ++to) {
      int there = 0, back = 0;
      TOKLINE_CUDA(cudaDeviceCanAccessPeer(&there, from, to));
      TOKLINE_CUDA(cudaDeviceCanAccessPeer(&back, to, from));
      if (there == 0 || back == 0) group.without_peer_access.push_back(StrCat(to, "-", from));
    }
  }
  TOKLINE_CUDA(cudaSetDevice(before));
  try {
    group.nccl = NcclVersion();
  } catch (const RuntimeFailure&) {  // only needed where there is no peer access
  }
  return group;
}

}  // namespace tokline
