// What policies may know of a device and of the code that runs on it. Always read, never written
// down: device/current_device.h is the one place that does so.
#pragma once

#include <cstdint>

namespace tokline {

struct DeviceFacts {
  int32_t sm_count = 0;
  int32_t compute_major = 0;  // 9 on Hopper
  int32_t compute_minor = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // opt-in maximum, static shared memory included
  int64_t shared_bytes_per_sm = 0;

  // The architecture that the kernels were compiled for, of all in this binary the one that the
  // driver took for this device: 10 * major + minor, __CUDA_ARCH__ / 10. It can be far less than
  // the device's own: PTX of compute_80 runs on every newer device, and its kernels lack what came
  // later, however new the device is. So features are asked for below, never by compute_major.
  int32_t code_architecture = 0;
  bool code_is_sm90a = false;  // compiled for sm_90a: wgmma, setmaxnreg

  // Clusters of blocks and loads from one another's shared memory.
  constexpr bool HasClusters() const { return compute_major >= 9 && code_architecture >= 90; }
  // Programmatic dependent launch: a kernel that waits for its predecessor by griddepcontrol.
  constexpr bool HasDependentLaunch() const {
    return compute_major >= 9 && code_architecture >= 90;
  }
  // The tensor cores and the copy engine of Hopper. No other device runs code of sm_90a.
  constexpr bool HasHopperCode() const { return compute_major == 9 && code_is_sm90a; }
};

}  // namespace tokline
