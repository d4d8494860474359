// What the warps of the sm_90a kernel share: its policy, its rings in shared memory, and the order
// of a block's work.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/ptx/mbarrier.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/paged_prefill/context_walk_device.cuh"
#include "kernels/paged_prefill/paged_prefill_policy.h"

namespace tokline {

struct HopperPrefillParams {
  PagedPrefillParams prefill;
  CUtensorMap q;   // [token, query head, head_dim]; boxes of a tile's tokens and a group's heads
  CUtensorMap kv;  // [page, K or V, KV head, token, head_dim]; boxes of KvBoxTokens() tokens
};

template <DType kDType, int kHeadDimOfPolicy>
struct HopperPrefillPolicy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimOfPolicy;
  static constexpr int kGroupThreads = 128;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = kGroupThreads * (1 + kConsumers);
  static constexpr int kConsumerRows = kPagedPrefillTileRows / kConsumers;
  static constexpr int kKvTokens = 128;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kPanels = kHeadDim / 64;
  using QueryPlacement = SwizzledPanels<kHeadDim * 2, kPagedPrefillTileRows>;
  using KvPlacement = SwizzledPanels<kHeadDim * 2, kKvTokens>;
};

// A box of the KV map is a page's tokens, a tile's at most.
template <typename Policy>
TOKLINE_HOST_DEVICE int32_t KvBoxTokens(const PagedKvLayout& layout) {
  return layout.page_size < Policy::kKvTokens ? layout.page_size : Policy::kKvTokens;
}

// What the look-up warp finds out about a KV tile, and the query tile that it is for.
struct alignas(16) HopperTileNote {
  static constexpr int kMaxPages = 8;  // pages hold 16 tokens or more
  int32_t position;                    // of its first token in the context
  int32_t tokens;                      // valid ones, which its chunk has
  int32_t last;                        // whether it is its query tile's last
  int32_t page_row;                    // of its first token in its page
  QueryTile query;
  int32_t pages[kMaxPages];  // of each box
  int32_t kv_head;
};

// Slots in shared memory by use: use i takes slot i % kSlots. Full(use) completes with one arrival
// and the bytes that it announces, Empty(use) with one of each warp that reads it.
template <int kSlots, int kBytesOfSlot>
struct HopperRing {
  static constexpr int kSlotBytes = kBytesOfSlot;
  static constexpr int kBytes = kSlots * kSlotBytes;
  static constexpr int kBarrierBytes = 2 * kSlots * 8;
  uint32_t slots;
  uint32_t barriers;

  __device__ uint32_t Slot(int use) const { return slots + use % kSlots * kSlotBytes; }
  __device__ uint32_t Full(int use) const { return barriers + use % kSlots * 8; }
  __device__ uint32_t Empty(int use) const { return barriers + (kSlots + use % kSlots) * 8; }
  __device__ void WaitFull(int use) const { ptx::MbarrierWait(Full(use), Round(use)); }
  // The first round finds every slot empty.
  __device__ void WaitEmpty(int use) const { ptx::MbarrierWait(Empty(use), Round(use) ^ 1); }
  // By all lanes of the warp that fills it: waits for room and announces what its copies bring.
  __device__ void Claim(int use, uint32_t bytes, int lane) const {
    WaitEmpty(use);
    if (lane == 0) ptx::MbarrierArriveExpect(Full(use), bytes);
    __syncwarp();
  }
  // By all lanes of a warp that reads it.
  __device__ void Release(int use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(Empty(use));
  }
  // By every lane of a warp that reads it with ordinary loads. Each arrives for its own reads:
  // racecheck does not follow the reads of other lanes through __syncwarp.
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

template <typename Policy>
struct HopperShared {
  static_assert(HopperTileNote::kMaxPages * 16 >= Policy::kKvTokens);
  static constexpr int kNotes = 8;
  using QueryRing = HopperRing<2, kPagedPrefillTileRows * Policy::kHeadDim * 2>;
  using KeyRing = HopperRing<2, Policy::kKvTokens * Policy::kHeadDim * 2>;
  using ValueRing = HopperRing<3, Policy::kKvTokens * Policy::kHeadDim * 2>;
  using NoteRing = HopperRing<kNotes, sizeof(HopperTileNote)>;
  static constexpr int kBytes = QueryRing::kBytes + KeyRing::kBytes + ValueRing::kBytes +
                                NoteRing::kBytes + QueryRing::kBarrierBytes +
                                KeyRing::kBarrierBytes + ValueRing::kBarrierBytes +
                                NoteRing::kBarrierBytes + kPagedPrefillTileRows * 8;
  static_assert(kBytes <= PagedPrefillBlockBytes(PagedPrefillVariant::kHopper, Policy::kHeadDim));

  unsigned char* base;  // at a multiple of 1024
  QueryRing q;          // by query tile; its rows later stage their own output
  KeyRing k;            // by KV tile
  ValueRing v;
  NoteRing notes;
  int64_t* row_offsets;  // of the packed rows of a query tile in `out`

  __device__ explicit HopperShared(unsigned char* start) : base(start) {
    uint32_t at = ptx::SharedAddress(start);
    const auto take = [&at](uint32_t bytes) { return (at += bytes) - bytes; };
    q.slots = take(QueryRing::kBytes);
    k.slots = take(KeyRing::kBytes);
    v.slots = take(ValueRing::kBytes);
    notes.slots = take(NoteRing::kBytes);
    q.barriers = take(QueryRing::kBarrierBytes);
    k.barriers = take(KeyRing::kBarrierBytes);
    v.barriers = take(ValueRing::kBarrierBytes);
    notes.barriers = take(NoteRing::kBarrierBytes);
    row_offsets = reinterpret_cast<int64_t*>(At(at));
  }
  // By one thread.
  __device__ void Init() const {
    constexpr int kConsumerWarps = Policy::kConsumers * Policy::kGroupThreads / 32;
    constexpr int kCopyWarps = 2;  // of K and of V
    q.Init(kConsumerWarps);
    k.Init(kConsumerWarps);
    v.Init(kConsumerWarps);
    notes.Init(32 * (kConsumerWarps + kCopyWarps));  // released by lane
    ptx::FenceMbarrierInit();
  }
  // What stands at a shared address.
  __device__ unsigned char* At(uint32_t address) const { return base + (address - q.slots); }
  __device__ HopperTileNote& Note(int use) const {
    return reinterpret_cast<HopperTileNote*>(At(notes.slots))[use % kNotes];
  }
};

// The query tiles of a block, one KV head each: dealt, longest first, in rounds that turn back, so
// that who gets the longest of a round gets the shortest of the next.
class HopperWork {
 public:
  __device__ explicit HopperWork(const PagedPrefillParams& params)
      : kv_heads_(static_cast<uint32_t>(params.layout.num_kv_heads)),
        count_(static_cast<uint32_t>(params.num_tiles) * kv_heads_) {}
  __device__ bool More() const { return Index() < count_; }
  __device__ void Next() { ++round_; }
  __device__ uint32_t Tile() const { return Index() / kv_heads_; }
  __device__ uint32_t KvHead() const { return Index() % kv_heads_; }

 private:
  // At most two rounds beyond count_, which is an int32: it does not wrap.
  __device__ uint32_t Index() const {
    const uint32_t place = round_ % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    return round_ * gridDim.x + place;
  }
  uint32_t kv_heads_;
  uint32_t count_;
  uint32_t round_ = 0;
};

}  // namespace tokline
