// Reads a GPU's state through NVML, the driver's management library. NVML is opened at run time, so
// that programs start on machines without a driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tokline {

// A value that could not be read is absent.
struct GpuState {
  std::optional<uint32_t> sm_clock_mhz;
  std::optional<uint32_t> memory_clock_mhz;
  std::optional<double> power_cap_w;
  std::optional<double> power_w;
  std::optional<uint32_t> temperature_c;
  std::optional<uint64_t> throttle_reasons;  // NVML's bit mask; ThrottleText names the bits
  std::optional<uint32_t> other_processes;   // processes on the GPU other than this one
};

// `pci_bus_id` has CUDA's format, "0000:1b:00.0". All values are absent if NVML cannot be used.
GpuState ReadGpuState(const std::string& pci_bus_id);

// How a GPU is configured.
struct GpuSetup {
  std::optional<uint32_t> max_sm_clock_mhz;
  std::optional<bool> mig;  // divided into instances; also false where the GPU does not support it
  std::optional<uint32_t> nvlinks;  // that are active
};
GpuSetup ReadGpuSetup(const std::string& pci_bus_id);

// Returns "" if NVML cannot be used.
std::string DriverVersion();

// Returns "none", or the names of the set bits, as in "power cap, thermal".
std::string ThrottleText(uint64_t reasons);

// Whether the mask has a reason that makes kernels slower than they could be. Being idle or limited
// by an application's clock setting is a state, not a disturbance.
bool IsThrottled(uint64_t reasons);

// Whether the device runs slower to stay within its power limit.
bool ReachedPowerCap(uint64_t reasons);

// Says what slowed a measurement between these two states, as in "throttled: power cap; 2 other
// processes on the GPU"; returns "" if nothing that could be read did.
std::string Disturbance(const GpuState& before, const GpuState& after);

}  // namespace tokline
