// The environment of a run. Figures of runs with different fingerprints are not compared.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/measure/build_info.h"
#include "harness/measure/nvml.h"

namespace tokline {

struct GpuIdentity {
  std::string name;
  std::string uuid_hash;   // tells devices apart without identifying them
  std::string pci_bus_id;  // for NVML only; never recorded
  std::string compute_capability;
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  std::string driver;        // the version of the kernel driver, or ""
  std::string cuda_driver;   // the CUDA version that the driver supports
  std::string cuda_runtime;  // the version that the program was linked with
  std::string cublaslt;      // the version of the loaded library, or ""
  std::optional<uint32_t> max_sm_clock_mhz{};
  std::optional<bool> mig{};          // whether the GPU is divided into instances
  std::optional<bool> mps{};          // whether this process shares the GPU through an MPS server
  std::optional<uint32_t> nvlinks{};  // that are active
};

// The GPUs of a run on several ranks, in their order; with several hosts, those of the first one.
struct GpuGroup {
  std::vector<GpuIdentity> gpus;
  std::vector<std::string> without_peer_access;  // pairs, such as "0-1"
  std::string nccl;                              // the version that can be loaded, or ""
};

// Does not reveal who ran it or where: no host name, user or path except those in the command line.
struct Fingerprint {
  std::string time_utc;  // of the start of the run, ISO 8601
  std::vector<std::string> command_line;
  BuildInfo build;
  std::string cpu;
  int cpu_threads = 0;
  std::string cpu_governor;  // "" when unknown
  std::string os;
  std::optional<GpuIdentity> gpu;  // none for a run on the CPU
  GpuState gpu_before;
  std::optional<GpuGroup> group{};  // of a run on several GPUs
  // By rank: tells hosts apart without identifying them. Empty unless there are several.
  std::vector<std::string> hosts{};
};

// The words of a command line. Absolute paths are cut to their last parts, or to the parts from a
// folder named "build" on: a record says what ran, not in which folders of a machine.
std::vector<std::string> WithoutFolders(std::span<const char* const> arguments);

// `cuda` adds the current CUDA device, which must exist, and all of several `ranks`.
Fingerprint TakeFingerprint(int argc, char** argv, bool cuda, int32_t ranks = 1);

// CUDA builds only.
GpuIdentity IdentifyGpu();
GpuGroup IdentifyGpus(int32_t count);

// Hashes the bytes with FNV-1a into 16 hexadecimal digits.
std::string HashText(const std::string& bytes);

}  // namespace tokline
