// What plans may know about a device and about the code that runs on it. The facts are
// always queried, never hard-coded; device/current_device.h is the only place that queries them.
#pragma once

#include <cstdint>

namespace tokline {

struct DeviceFacts {
  int32_t sm_count = 0;
  int32_t compute_major = 0;  // 9 on Hopper
  int32_t compute_minor = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // opt-in maximum, including static shared memory
  int64_t shared_bytes_per_sm = 0;

  // The architecture for which the code that the driver chose from this binary was compiled, as 10
  // * major + minor, which is __CUDA_ARCH__ / 10. It can be much older than the device: PTX for
  // compute_80 runs on every newer device, but its kernels lack all later features. Ask for
  // features with the functions below, never with compute_major.
  int32_t code_architecture = 0;
  bool code_is_sm90a = false;  // compiled for sm_90a: wgmma, setmaxnreg
  // The blocks of the largest cluster, where there are clusters. Every device has room for eight;
  // more are a property of the device, and of the part of it that a MIG instance has.
  int32_t max_cluster_blocks = 8;

  bool operator==(const DeviceFacts&) const = default;

  // How many blocks of this much dynamic shared memory an SM has room for, by it alone. The driver
  // reserves some for each.
  constexpr int64_t BlocksPerSm(int64_t shared_bytes) const {
    constexpr int64_t kReservedBytes = 1024;
    return shared_bytes_per_sm / (shared_bytes + kReservedBytes);
  }

  // How many clusters of this many blocks run at once if an SM takes `blocks_per_sm` of the blocks.
  // A cluster lies in one group of SMs: on 132 SMs, clusters of two fill all, those of up to eight
  // 120, and larger ones 112.
  constexpr int32_t ClustersAtOnce(int32_t blocks, int64_t blocks_per_sm) const {
    const int32_t sms = blocks > 8   ? sm_count * 6 / 7
                        : blocks > 2 ? sm_count * 10 / 11
                                     : sm_count / blocks * blocks;
    return static_cast<int32_t>(sms * blocks_per_sm / blocks);
  }

  // Thread block clusters, whose blocks can load from each other's shared memory.
  constexpr bool HasClusters() const { return compute_major >= 9 && code_architecture >= 90; }
  // Programmatic dependent launch: a kernel waits for its predecessor with griddepcontrol.
  constexpr bool HasDependentLaunch() const {
    return compute_major >= 9 && code_architecture >= 90;
  }
  // The tensor cores and copy engine of Hopper. No other device runs sm_90a code.
  constexpr bool HasHopperCode() const { return compute_major == 9 && code_is_sm90a; }
};

}  // namespace tokline
