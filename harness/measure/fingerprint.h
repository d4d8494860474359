// The circumstances of a run: figures of runs whose circumstances differ are not compared.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/measure/build_info.h"
#include "harness/measure/nvml.h"

namespace tokline {

struct GpuIdentity {
  std::string name;
  std::string uuid_hash;   // tells devices apart without naming them
  std::string pci_bus_id;  // for NVML; never recorded
  std::string compute_capability;
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  std::string driver;        // the kernel driver's version, or ""
  std::string cuda_driver;   // the CUDA version that the driver supports
  std::string cuda_runtime;  // that the program was linked with
  std::string cublaslt;      // the loaded library's version, or ""
  std::optional<uint32_t> max_sm_clock_mhz{};
  std::optional<bool> mig{};  // the GPU is divided into instances
  std::optional<bool> mps{};  // this process shares the GPU through an MPS server
};

// Says nothing of who or where: no hostname, user or path but those in the command line.
struct Fingerprint {
  std::string time_utc;  // of the start, ISO 8601
  std::vector<std::string> command_line;
  BuildInfo build;
  std::string cpu;
  int cpu_threads = 0;
  std::string cpu_governor;  // or ""
  std::string os;
  std::optional<GpuIdentity> gpu;  // none: a run on the CPU
  GpuState gpu_before;
};

// `cuda`: describe the current CUDA device too, which must exist.
Fingerprint TakeFingerprint(int argc, char** argv, bool cuda);

// CUDA builds only.
GpuIdentity IdentifyGpu();

// Of the bytes, as 16 hexadecimal digits (FNV-1a).
std::string HashText(const std::string& bytes);

}  // namespace tokline
