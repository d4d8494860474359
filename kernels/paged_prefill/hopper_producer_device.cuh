// The producer warps of the sm_90a kernel: one looks up the pages that hold a KV tile's tokens and
// leaves a note of them. Another has the copy engine load query tiles and K tiles, and a third V
// tiles.
#pragma once

#include "kernels/device/ptx/load.cuh"
#include "kernels/paged_prefill/hopper_shared_device.cuh"

namespace tokline {

// Walks the contexts of the block's query tiles. It is ahead of the copies by at most the number of
// notes.
template <typename Policy>
__device__ __forceinline__ void LookUpTiles(const PagedPrefillParams& params,
                                            const HopperShared<Policy>& shared) {
  const int lane = threadIdx.x % 32;
  const int32_t box_tokens = params.layout.BoxTokens(Policy::kKvTokens);
  const PageSplit pages = params.layout.Pages();
  int use = 0;
  auto at = static_cast<int32_t>(blockIdx.x);
  for (int32_t left = params.tiles[at].left; left > 0; --left) {
    const PagedPrefillTile planned = params.tiles[at];
    auto walk = WalkOf<Policy::kKvTokens, Policy::kCut>(params, at, planned);
    const int32_t state = Policy::kCut ? StateOf(params, at) : -1;
    at = planned.next;
    if (left > 1) ptx::PrefetchL1(&params.tiles[at]);
    KvTile tile;
    bool more = walk.First(tile);
    if (!more) tile = {};  // no tokens: nothing is loaded
    do {
      const KvTile now = tile;
      const int32_t token = now.token + lane * box_tokens;
      int32_t page = -1;
      if (lane * box_tokens < Policy::kKvTokens && now.chunk_length > 0) {
        page = params.table
                   .chunk_pages[now.page_begin + pages.PageOf(min(token, now.chunk_length - 1))];
      }
      more = more && walk.Next(tile);
      shared.notes.WaitEmpty(use);
      HopperTileNote& note = shared.Note(use);
      // The lane that publishes the pages writes all of them, because racecheck does not track
      // other lanes' writes through __syncwarp.
#pragma unroll
      for (int box = 0; box < HopperTileNote::kMaxPages; ++box) {
        const int32_t page_of_box = __shfl_sync(0xffffffffu, page, box);
        if (lane == 0) note.pages[box] = page_of_box;
      }
      if (lane == 0) {
        note.position = now.position;
        note.tokens = min(now.chunk_length - now.token, Policy::kKvTokens);
        note.last = !more;
        note.page_row = pages.RowOf(now.token);
        note.query = QueryTile(params, planned);
        note.kv_head = planned.kv_head;
        note.target = state < 0 ? planned.kv_head : ~state;
      }
      __syncwarp();
      if (lane == 0) ptx::MbarrierArrive(shared.notes.Full(use));
      ++use;
    } while (more);
  }
}

// Loads all V tiles, or all query and K tiles. Each lane issues one box of 64 columns. A tile that
// ends with its chunk takes small boxes, and only those with tokens: the rest of a page would have
// to come from memory for nothing.
template <typename Policy, bool kValues>
__device__ __forceinline__ void LoadTiles(const HopperPrefillArgs& params,
                                          const HopperShared<Policy>& shared) {
  const PagedPrefillParams& prefill = params.prefill;
  const int lane = threadIdx.x % 32;
  const int panel = lane % Policy::kPanels;
  const int box = lane / Policy::kPanels;
  const int32_t box_tokens = prefill.layout.BoxTokens(Policy::kKvTokens);
  const int box_shift = 31 - __clz(box_tokens);
  const bool has_box = box * box_tokens < Policy::kKvTokens;
  const uint32_t offset =
      panel * Policy::KvPlacement::kPanelBytes + box * box_tokens * Policy::KvPlacement::kRowPitch;
  const int32_t group = prefill.num_q_heads / prefill.layout.num_kv_heads;
  const auto load_query = [&](int query, const HopperTileNote& note) {
    shared.q.Claim(query, prefill.tile_tokens * group * Policy::kHeadDim * 2, lane);
    if (lane < Policy::kPanels) {
      ptx::TensorCopyToShared(shared.q.Slot(query) + lane * Policy::QueryPlacement::kPanelBytes,
                              &params.q, lane * 64, note.kv_head * group, note.query.q_begin,
                              shared.q.Full(query));
    }
  };
  const auto load = [&](const auto& ring, int use, const HopperTileNote& note) {
    const int32_t head = note.kv_head;
    const int32_t row = note.page_row;
    const int32_t tokens = note.tokens;
    if (tokens < Policy::kKvTokens) {
      const int32_t few = (tokens + Policy::kFewTokens - 1) / Policy::kFewTokens;
      const int32_t first = box * Policy::kFewTokens;
      const int32_t page = note.pages[box < few ? first >> box_shift : 0];
      ring.Claim(use, few * Policy::kFewTokens * Policy::kHeadDim * 2, lane);
      if (box < few) {
        ptx::TensorCopyToShared(ring.Slot(use) + panel * Policy::KvPlacement::kPanelBytes +
                                    first * Policy::KvPlacement::kRowPitch,
                                &params.few, panel * 64, row + (first & (box_tokens - 1)), head,
                                kValues, page, ring.Full(use));
      }
      return;
    }
    const int32_t page = note.pages[has_box ? box : 0];
    ring.Claim(use, ring.kSlotBytes, lane);
    if (has_box) {
      ptx::TensorCopyToShared(ring.Slot(use) + offset, &params.kv, panel * 64, row, head, kValues,
                              page, ring.Full(use));
    }
  };
  int use = 0;
  const int32_t tiles = prefill.tiles[blockIdx.x].left;
  for (int query = 0; query < tiles; ++query) {
    bool last = false;
    for (bool first = true; !last; first = false, ++use) {
      shared.notes.WaitFull(use);
      const HopperTileNote& note = shared.Note(use);
      last = note.last != 0;
      if constexpr (kValues) {
        load(shared.v, use, note);
      } else {
        if (first) load_query(query, note);
        load(shared.k, use, note);
      }
      shared.notes.ReleaseByLane(use);
    }
  }
}

}  // namespace tokline
