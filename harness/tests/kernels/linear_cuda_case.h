// Which variants of linear a CUDA test can run.
#pragma once

#include "harness/platform/device.h"
#include "kernels/linear/linear.h"

namespace tokline::testing {

// Whether the GPU and the program have the code of a variant: kWgmma and kTile are for sm_90a.
inline bool HasCodeFor(LinearVariant variant) {
  const bool hopper = variant == LinearVariant::kWgmma || variant == LinearVariant::kTile;
  return !hopper || QueryDeviceFacts().HasHopperCode();
}

}  // namespace tokline::testing
