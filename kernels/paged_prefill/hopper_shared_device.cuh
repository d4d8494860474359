// What the warps of the sm_90a kernel share: its policy and its rings in shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/bulk_copy.cuh"
#include "kernels/device/ptx/cp_async.cuh"
#include "kernels/device/slot_ring.cuh"
#include "kernels/device/swizzle.cuh"
#include "kernels/paged_prefill/context_walk_device.cuh"
#include "kernels/paged_prefill/paged_prefill_plan.h"

namespace tokline {

struct HopperPrefillArgs {
  PagedPrefillParams prefill;
  CUtensorMap q;    // [token, query head, head_dim]; boxes of a tile's tokens and a group's heads
  CUtensorMap kv;   // [page, K or V, KV head, token, head_dim]; boxes of BoxTokens() tokens
  CUtensorMap few;  // the same with boxes of kFewTokens tokens
};

// kCut: tiles may be parts. Other plans run code without branches for them.
template <DType kDType, int kHeadDimOfPolicy, bool kCutOfPolicy>
struct HopperPrefillPolicy {
  using T = typename DeviceType<kDType>::Type;
  static constexpr int kHeadDim = kHeadDimOfPolicy;
  static constexpr bool kCut = kCutOfPolicy;
  static constexpr int kGroupThreads = 128;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = kGroupThreads * (1 + kConsumers);
  static constexpr int kConsumerRows = kPagedPrefillTileRows / kConsumers;
  static constexpr int kKvTokens = kPagedPrefillKvTokens;
  static constexpr int kFewTokens = 16;  // every page has a multiple of these
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kPanels = kHeadDim / 64;
  using QueryPlacement = SwizzledPanels<kHeadDim * 2, kPagedPrefillTileRows>;
  using KvPlacement = SwizzledPanels<kHeadDim * 2, kKvTokens>;
};

// What the look-up warp finds out about a KV tile and the query tile to which it belongs.
struct alignas(16) HopperTileNote {
  static constexpr int kMaxPages = 8;  // a page holds at least 16 tokens
  int32_t position;                    // context position of the tile's first token
  int32_t tokens;                      // valid tokens, those that lie in its chunk
  int32_t last;                        // whether it is the last KV tile of its query tile
  int32_t page_row;                    // row of its first token within the page
  QueryTile query;
  int32_t pages[kMaxPages];  // the page of each box
  int32_t kv_head;
  // Where a consumer leaves the tile's rows: the KV head of the output or, if the tile is a part,
  // ~StateOf() it. One number, because another register alive in the loop changes its schedule.
  int32_t target;
};

template <typename Policy>
struct HopperShared {
  static_assert(HopperTileNote::kMaxPages * 16 >= Policy::kKvTokens);
  static constexpr int kNotes = 8;
  using QueryRing = SlotRing<2, kPagedPrefillTileRows * Policy::kHeadDim * 2>;
  using KeyRing = SlotRing<2, Policy::kKvTokens * Policy::kHeadDim * 2>;
  using ValueRing = SlotRing<3, Policy::kKvTokens * Policy::kHeadDim * 2>;
  using NoteRing = SlotRing<kNotes, sizeof(HopperTileNote)>;
  static constexpr int kBytes = QueryRing::kBytes + KeyRing::kBytes + ValueRing::kBytes +
                                NoteRing::kBytes + QueryRing::kBarrierBytes +
                                KeyRing::kBarrierBytes + ValueRing::kBarrierBytes +
                                NoteRing::kBarrierBytes + kPagedPrefillTileRows * 8;
  static_assert(kBytes <= PagedPrefillBlockBytes(PagedPrefillVariant::kHopper, Policy::kHeadDim));

  unsigned char* base;  // at a multiple of 1024 bytes
  QueryRing q;          // one slot per query tile; a tile's rows later stage their own output
  KeyRing k;            // one slot per KV tile
  ValueRing v;
  NoteRing notes;
  int64_t* row_offsets;  // offset in `out` of each packed row of a query tile

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
  // One thread calls this.
  __device__ void Init() const {
    constexpr int kConsumerWarps = Policy::kConsumers * Policy::kGroupThreads / 32;
    constexpr int kCopyWarps = 2;  // one for K and one for V
    q.Init(kConsumerWarps);
    k.Init(kConsumerWarps);
    v.Init(kConsumerWarps);
    notes.Init(32 * (kConsumerWarps + kCopyWarps));  // released by lane
    ptx::FenceMbarrierInit();
  }
  // Returns the generic pointer for a shared-memory address.
  __device__ unsigned char* At(uint32_t address) const { return base + (address - q.slots); }
  __device__ HopperTileNote& Note(int use) const {
    return reinterpret_cast<HopperTileNote*>(At(notes.slots))[use % kNotes];
  }
};

}  // namespace tokline
