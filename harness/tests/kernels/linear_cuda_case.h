// Which variants of linear a CUDA test can run.
#pragma once

#include "harness/platform/device.h"
#include "kernels/linear/linear.h"

namespace tokline::testing {

inline bool NeedsHopperCode(LinearVariant variant) {
  return variant == LinearVariant::kWgmma || variant == LinearVariant::kTile;
}

// Whether the GPU and the program have the code of a variant.
inline bool HasCodeFor(LinearVariant variant) {
  return !NeedsHopperCode(variant) || QueryDeviceFacts().HasHopperCode();
}

}  // namespace tokline::testing
