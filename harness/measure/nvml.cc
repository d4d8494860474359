// Opens NVML at run time, reads a GPU's state and setup through it, and puts throttle reasons into
// words.
#include "harness/measure/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace tokline {
namespace {

// The part of NVML's C interface that is used here. It is stable by name and version suffix.
// Toolkits installed from a package index come without <nvml.h>.
using NvmlDevice = struct NvmlDeviceTag*;
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;
constexpr int kTemperatureGpu = 0;
struct NvmlProcess {  // nvmlProcessInfo_t, as nvmlDeviceGetComputeRunningProcesses_v3 fills it
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct LibraryDeleter {
  void operator()(void* library) const noexcept { dlclose(library); }
};

class Nvml {
 public:
  // Returns null if there is no usable library.
  static const Nvml* Get() {
    static const Nvml nvml;
    return nvml.ready_ ? &nvml : nullptr;
  }

  template <typename... Parameters, typename... Args>
  bool Call(int (*function)(Parameters...), Args... args) const {
    return function != nullptr && function(args...) == kSuccess;
  }

  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_by_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*mig_mode)(NvmlDevice, unsigned* current, unsigned* pending) = nullptr;
  int (*nvlink_state)(NvmlDevice, unsigned link, unsigned* active) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*power_usage)(NvmlDevice, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*throttle_reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;

 private:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    int (*init)() = nullptr;
    Load(init, "nvmlInit_v2");
    Load(driver_version, "nvmlSystemGetDriverVersion");
    Load(device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    Load(clock, "nvmlDeviceGetClockInfo");
    Load(max_clock, "nvmlDeviceGetMaxClockInfo");
    Load(mig_mode, "nvmlDeviceGetMigMode");
    Load(nvlink_state, "nvmlDeviceGetNvLinkState");
    Load(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    Load(power_usage, "nvmlDeviceGetPowerUsage");
    Load(temperature, "nvmlDeviceGetTemperature");
    Load(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    Load(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    ready_ = Call(init);
  }

  template <typename Function>
  void Load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_.get(), name));
  }

  std::unique_ptr<void, LibraryDeleter> library_;
  bool ready_ = false;
};

struct ThrottleReason {
  uint64_t bit;
  const char* name;
  bool disturbs;
};

constexpr uint64_t kPowerCap = 0x4;

constexpr std::array kThrottleReasons{
    ThrottleReason{0x1, "idle", false},
    ThrottleReason{0x2, "application clocks", false},
    ThrottleReason{kPowerCap, "power cap", true},
    ThrottleReason{0x8, "hardware slowdown", true},
    ThrottleReason{0x10, "sync boost", true},
    ThrottleReason{0x20, "thermal", true},
    ThrottleReason{0x40, "hardware thermal", true},
    ThrottleReason{0x80, "power brake", true},
    ThrottleReason{0x100, "display clocks", false},
};

std::optional<uint32_t> OtherProcesses(const Nvml& nvml, NvmlDevice device) {
  if (nvml.processes == nullptr) return std::nullopt;
  std::vector<NvmlProcess> found(64);
  auto count = static_cast<unsigned>(found.size());
  const int code = nvml.processes(device, &count, found.data());
  // more processes than the table holds: certainly disturbed
  if (code == kInsufficientSize) return count;
  if (code != kSuccess) return std::nullopt;
  uint32_t others = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (found[i].pid != static_cast<unsigned>(getpid())) ++others;
  }
  return others;
}

// Returns null if NVML cannot be used or does not know the device.
NvmlDevice DeviceAt(const Nvml* nvml, const std::string& pci_bus_id) {
  NvmlDevice device = nullptr;
  if (nvml == nullptr || !nvml->Call(nvml->device_by_bus_id, pci_bus_id.c_str(), &device)) {
    return nullptr;
  }
  return device;
}

// Returns those reasons that disturb a measurement.
uint64_t Disturbing(uint64_t reasons) {
  uint64_t mask = 0;
  for (const ThrottleReason& reason : kThrottleReasons) {
    if (reason.disturbs) mask |= reason.bit;
  }
  return reasons & mask;
}

}  // namespace

GpuState ReadGpuState(const std::string& pci_bus_id) {
  GpuState state;
  const Nvml* nvml = Nvml::Get();
  const NvmlDevice device = DeviceAt(nvml, pci_bus_id);
  if (device == nullptr) return state;
  unsigned value = 0;
  if (nvml->Call(nvml->clock, device, kClockSm, &value)) state.sm_clock_mhz = value;
  if (nvml->Call(nvml->clock, device, kClockMemory, &value)) state.memory_clock_mhz = value;
  if (nvml->Call(nvml->power_limit, device, &value)) state.power_cap_w = value / 1e3;
  if (nvml->Call(nvml->power_usage, device, &value)) state.power_w = value / 1e3;
  if (nvml->Call(nvml->temperature, device, kTemperatureGpu, &value)) state.temperature_c = value;
  unsigned long long reasons = 0;
  if (nvml->Call(nvml->throttle_reasons, device, &reasons)) state.throttle_reasons = reasons;
  state.other_processes = OtherProcesses(*nvml, device);
  return state;
}

GpuSetup ReadGpuSetup(const std::string& pci_bus_id) {
  GpuSetup setup;
  const Nvml* nvml = Nvml::Get();
  const NvmlDevice device = DeviceAt(nvml, pci_bus_id);
  if (device == nullptr) return setup;
  unsigned value = 0;
  if (nvml->Call(nvml->max_clock, device, kClockSm, &value)) setup.max_sm_clock_mhz = value;
  if (nvml->mig_mode != nullptr) {
    unsigned current = 0;
    unsigned pending = 0;
    const int code = nvml->mig_mode(device, &current, &pending);
    if (code == kSuccess) setup.mig = current != 0;
    if (code == kNotSupported) setup.mig = false;
  }
  constexpr unsigned kMostLinks = 18;  // NVML_NVLINK_MAX_LINKS
  for (unsigned link = 0; link < kMostLinks; ++link) {
    if (nvml->Call(nvml->nvlink_state, device, link, &value)) {
      setup.nvlinks = setup.nvlinks.value_or(0) + (value != 0 ? 1 : 0);
    }
  }
  return setup;
}

std::string DriverVersion() {
  const Nvml* nvml = Nvml::Get();
  std::array<char, 96> version{};
  if (nvml == nullptr ||
      !nvml->Call(nvml->driver_version, version.data(), static_cast<unsigned>(version.size()))) {
    return "";
  }
  return version.data();
}

std::string ThrottleText(uint64_t reasons) {
  std::string text;
  for (const ThrottleReason& reason : kThrottleReasons) {
    if ((reasons & reason.bit) == 0) continue;
    text += (text.empty() ? "" : ", ") + std::string(reason.name);
    reasons &= ~reason.bit;
  }
  if (reasons != 0) text += (text.empty() ? "" : ", ") + std::string("unknown reason");
  return text.empty() ? "none" : text;
}

bool IsThrottled(uint64_t reasons) { return Disturbing(reasons) != 0; }

bool ReachedPowerCap(uint64_t reasons) { return (reasons & kPowerCap) != 0; }

std::string Disturbance(const GpuState& before, const GpuState& after) {
  std::string words;
  const uint64_t reasons =
      Disturbing(before.throttle_reasons.value_or(0) | after.throttle_reasons.value_or(0));
  if (reasons != 0) words = "throttled: " + ThrottleText(reasons);
  const uint32_t others =
      std::max(before.other_processes.value_or(0), after.other_processes.value_or(0));
  if (others > 0) {
    words += (words.empty() ? "" : "; ") + std::to_string(others) +
             (others == 1 ? " other process on the GPU" : " other processes on the GPU");
  }
  return words;
}

}  // namespace tokline
