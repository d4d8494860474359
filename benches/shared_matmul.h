// The one cuBLASLt handle of a bench program.
#pragma once

#include "kernels/linear/linear.h"

namespace tokline::bench {

// Null in builds without CUDA. Lives until the process ends: a handle must not be destroyed after
// the driver has shut down.
inline Matmul* SharedMatmul() {
#if TOKLINE_HAS_CUDA
  static Matmul* const matmul = new Matmul;
  return matmul;
#else
  return nullptr;
#endif
}

}  // namespace tokline::bench
