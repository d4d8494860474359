// Kernels that run before a measurement: one holds a stream while work is queued behind it, the
// other clears the L2 of earlier data. CUDA builds only.
#pragma once

#include <cstdint>

#include "kernels/common/launch_options.h"

namespace tokline {

// Keeps one thread busy for this long by the device's wall clock, whose resolution is about a
// microsecond. Always waits for the preceding kernel.
void Spin(double us, CUstream_st* stream);

// Reads the whole buffer, so that the L2 writes back and evicts what it held. `bytes` must be a
// multiple of 16 and at least 16; the values in the buffer do not matter.
void Sweep(const void* buffer, int64_t bytes, CUstream_st* stream);

}  // namespace tokline
