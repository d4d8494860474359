// What the driver's management library says of a GPU's state. Opened at run time, so that programs
// start where there is no driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tokline {

// What could not be read is absent.
struct GpuState {
  std::optional<uint32_t> sm_clock_mhz;
  std::optional<uint32_t> memory_clock_mhz;
  std::optional<double> power_cap_w;
  std::optional<double> power_w;
  std::optional<uint32_t> temperature_c;
  std::optional<uint64_t> throttle_reasons;  // NVML's bit mask; ThrottleText names them
  std::optional<uint32_t> other_processes;   // on the GPU, besides this one
};

// `pci_bus_id` as CUDA gives it, "0000:1b:00.0". All absent where NVML cannot be used.
GpuState ReadGpuState(const std::string& pci_bus_id);

// How a GPU is set up.
struct GpuSetup {
  std::optional<uint32_t> max_sm_clock_mhz;
  std::optional<bool> mig;  // divided into instances; false too where that is not supported
};
GpuSetup ReadGpuSetup(const std::string& pci_bus_id);

// "" where NVML cannot be used.
std::string DriverVersion();

// "none", or the set bits in words, like "power cap, thermal".
std::string ThrottleText(uint64_t reasons);

// Whether the mask holds a reason that makes kernels slower than they could be; being idle or
// limited by an application's clock setting is a state, not a disturbance.
bool IsThrottled(uint64_t reasons);

// Whether the device runs slower so as not to take more power than it may.
bool MeetsPowerCap(uint64_t reasons);

// What made a measurement between these states slower than it could be, in words like "throttled:
// power cap; 2 other processes on the GPU", or "": nothing that could be read did.
std::string Disturbance(const GpuState& before, const GpuState& after);

}  // namespace tokline
