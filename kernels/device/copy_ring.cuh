// A ring of stages in shared memory that the copy engine fills (sm_90). A producer waits until all
// readers have released a stage, and readers wait until its bytes have arrived.
#pragma once

#include <cstdint>

#include "kernels/device/ptx/mbarrier.cuh"

namespace tokline {

// A stage of a ring and the parity of its use.
struct RingPosition {
  int stages;
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A ring of equal stages that the copy engine fills, with two barriers per stage.
struct CopyRing {
  uint32_t data, barriers;  // addresses of the shared window
  int stages, stage_bytes;

  __device__ __forceinline__ uint32_t Stage(int stage) const { return data + stage * stage_bytes; }
  __device__ __forceinline__ uint32_t Full(int stage) const { return barriers + 16 * stage; }
  __device__ __forceinline__ uint32_t Empty(int stage) const { return Full(stage) + 8; }

  __device__ __forceinline__ void Init(int readers) const {
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      ptx::MbarrierInit(Full(stage), 1);
      ptx::MbarrierInit(Empty(stage), readers);
    }
  }
};

}  // namespace tokline
