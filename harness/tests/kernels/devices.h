// The devices for which plans are tested without a GPU: what NVIDIA's documentation states for
// each, with the code that it runs from a build for 80-virtual, for 90-virtual or for the device
// itself.
#pragma once

#include <algorithm>
#include <ostream>
#include <set>
#include <vector>

#include "kernels/common/device_facts.h"

namespace tokline::testing {

inline constexpr DeviceFacts kH200{.sm_count = 132,
                                   .compute_major = 9,
                                   .compute_minor = 0,
                                   .l2_bytes = 60 << 20,
                                   .shared_bytes_per_block = 227 << 10,
                                   .shared_bytes_per_sm = 228 << 10,
                                   .code_architecture = 90,
                                   .code_is_sm90a = true,
                                   .max_cluster_blocks = 16};

// Every kernel has launch bounds or a limit of registers, with which any device here runs a block.
// Registers and threads of an SM matter where a plan counts on several blocks.
struct NamedDevice {
  const char* name;
  DeviceFacts facts;
  int32_t registers_per_sm = 64 << 10;
  int32_t threads_per_sm = 2048;
};

inline void PrintTo(const NamedDevice& device, std::ostream* out) {
  *out << device.name << " with code for " << device.facts.code_architecture
       << (device.facts.code_is_sm90a ? "a" : "");
}

inline const std::vector<NamedDevice>& Devices() {
  static const std::vector<NamedDevice> devices = [] {
    const auto device = [](int32_t sms, int32_t major, int32_t minor, int64_t l2_mib,
                           int64_t shared_kib) {
      return DeviceFacts{.sm_count = sms,
                         .compute_major = major,
                         .compute_minor = minor,
                         .l2_bytes = l2_mib << 20,
                         .shared_bytes_per_block = (shared_kib - 1) << 10,
                         .shared_bytes_per_sm = shared_kib << 10};
    };
    const std::vector<NamedDevice> bare{
        {"A100", device(108, 8, 0, 40, 164)},
        {"RTX 3090", device(82, 8, 6, 6, 100), 64 << 10, 1536},
        {"RTX 4090", device(128, 8, 9, 72, 100), 64 << 10, 1536},
        {"H200", device(132, 9, 0, 60, 228)},
        {"B200", device(148, 10, 0, 126, 228)},
        {"RTX 5090", device(170, 12, 0, 96, 100), 64 << 10, 1536},
    };
    std::vector<NamedDevice> all;
    for (NamedDevice named : bare) {
      const int32_t own = 10 * named.facts.compute_major + named.facts.compute_minor;
      for (const int32_t code : std::set<int32_t>{80, std::min(90, own), own}) {
        named.facts.code_architecture = code;
        all.push_back(named);
      }
    }
    all.push_back({"H200", kH200});
    // Like an H200, it can run clusters of 16.
    DeviceFacts b200 = device(148, 10, 0, 126, 228);
    b200.code_architecture = 100;
    b200.max_cluster_blocks = 16;
    all.push_back({"B200 with clusters of 16", b200});
    return all;
  }();
  return devices;
}

}  // namespace tokline::testing
