// Kernels that stand before what is measured: one that holds a stream while work is queued behind
// it, one that empties the L2 of what was there. CUDA builds only.
#pragma once

#include <cstdint>

#include "kernels/common/launch_options.h"

namespace tokline {

// Keeps one thread busy for so long, by the device's wall clock (its grain is about a microsecond).
// Always waits for its predecessor.
void Spin(double us, CUstream_st* stream);

// Reads all of the buffer, so that the L2 writes back and gives up what it held. `bytes` is a
// multiple of 16 and at least 16; the buffer's values do not matter.
void Sweep(const void* buffer, int64_t bytes, CUstream_st* stream);

}  // namespace tokline
