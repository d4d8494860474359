// A ring of slots in shared memory that one warp fills and other warps read, with an mbarrier for
// each direction (sm_90).
#pragma once

#include <cstdint>

#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/mbarrier.cuh"

namespace tokline {

// Slots in shared memory, numbered by use: use i takes slot i % kSlots. Full(use) completes with
// one arrival and the bytes that it announces, Empty(use) with one arrival of each warp that reads
// it.
template <int kSlots, int kBytesOfSlot>
struct SlotRing {
  static constexpr int kSlotBytes = kBytesOfSlot;
  static constexpr int kBytes = kSlots * kSlotBytes;
  static constexpr int kBarrierBytes = 2 * kSlots * 8;
  uint32_t slots;
  uint32_t barriers;

  __device__ uint32_t Slot(int use) const { return slots + use % kSlots * kSlotBytes; }
  __device__ uint32_t Full(int use) const { return barriers + use % kSlots * 8; }
  __device__ uint32_t Empty(int use) const { return barriers + (kSlots + use % kSlots) * 8; }
  __device__ void WaitFull(int use) const { ptx::MbarrierWait(Full(use), Round(use)); }
  // In the first round every slot counts as empty.
  __device__ void WaitEmpty(int use) const { ptx::MbarrierWait(Empty(use), Round(use) ^ 1); }
  // All lanes of the warp that fills the slot call this. It waits for room and announces the bytes
  // that the warp's copies will load.
  __device__ void Claim(int use, uint32_t bytes, int lane) const {
    WaitEmpty(use);
    if (lane == 0) ptx::MbarrierArriveExpect(Full(use), bytes);
    __syncwarp();
  }
  // All lanes of a warp that reads the slot call this.
  __device__ void Release(int use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(Empty(use));
  }
  // Every lane of a warp that reads the slot with ordinary loads calls this. Each arrives for its
  // own reads, because racecheck does not track the reads of other lanes through __syncwarp.
  __device__ void ReleaseByLane(int use) const { ptx::MbarrierArrive(Empty(use)); }
  // `readers`: the arrivals that empty a slot.
  __device__ void Init(int readers) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::MbarrierInit(Full(slot), 1);
      ptx::MbarrierInit(Empty(slot), readers);
    }
  }

 private:
  __device__ static uint32_t Round(int use) { return use / kSlots & 1; }
};

}  // namespace tokline
