// The device that plans are tested for where there is none.
#pragma once

#include "kernels/common/device_facts.h"

namespace tokline::testing {

inline constexpr DeviceFacts kH200{.sm_count = 132,
                                   .compute_major = 9,
                                   .compute_minor = 0,
                                   .l2_bytes = 60 << 20,
                                   .shared_bytes_per_block = 227 << 10,
                                   .shared_bytes_per_sm = 228 << 10};

}  // namespace tokline::testing
