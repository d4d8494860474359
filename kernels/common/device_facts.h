// What policies may know of a device. Always read off the device, never written down.
#pragma once

#include <cstdint>

namespace tokline {

struct DeviceFacts {
  int32_t sm_count = 0;
  int32_t compute_major = 0;  // 9 on Hopper
  int32_t compute_minor = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // opt-in maximum
  int64_t shared_bytes_per_sm = 0;
};

}  // namespace tokline
