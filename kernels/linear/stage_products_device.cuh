// Products of the stages of a ring, as Linear's kTile and kHead compute them (sm_90a).
#pragma once

#include <cstdint>

#include "kernels/device/copy_ring.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/ptx/wgmma.cuh"

namespace tokline {

// One warpgroup adds up the products of `blocks` stages of 64 k, from `at` on: of the tokens that
// begin `x_at` bytes into a stage and the weight rows that begin at `weight_at`. The sums are laid
// out as in ptx/wgmma.cuh, with tokens as rows and weight rows as columns. Each stage is released
// when the next one has been multiplied. Returns the last stage, which is not released.
template <typename T, int kSums>
__device__ __forceinline__ int MultiplyStages(int blocks, const CopyRing& ring, int x_at,
                                              int weight_at, RingPosition& at,
                                              float (&sums)[kSums]) {
  constexpr int kBlockK = 64;
  int read = 0;  // the stage of the previous block
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    ptx::MbarrierWait(ring.Full(at.stage), at.phase);
    const uint32_t stage = ring.Stage(at.stage);
    const uint64_t x = ptx::WgmmaDescriptor(stage + x_at);
    const uint64_t weight = ptx::WgmmaDescriptor(stage + weight_at);
    ptx::PinRegisters(sums);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kBlockK / 16; ++step) {
      ptx::WgmmaK16<T>(sums, x + step * (32 >> 4), weight + step * (32 >> 4), (block | step) != 0);
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<1>();  // the previous block has been read
    if (block > 0 && threadIdx.x % 128 == 0) ptx::MbarrierArrive(ring.Empty(read));
    read = at.stage;
    at.Advance();
  }
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(sums);
  return read;
}

}  // namespace tokline
