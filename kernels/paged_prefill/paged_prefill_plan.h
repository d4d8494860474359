// How paged_prefill divides its work. Pure host code.
#pragma once

#include "kernels/common/device_facts.h"
#include "kernels/paged_prefill/packed_rows.h"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// The number of new tokens per tile: as many as fit into its rows, with all heads of a group per
// token.
constexpr int32_t PagedPrefillTileTokens(int32_t num_q_heads, const PagedKvLayout& layout) {
  return kPagedPrefillTileRows / (num_q_heads / layout.num_kv_heads);
}

// The time of a tile, in hundredths of the time of a KV tile of 128 tokens (kHopper on an H200: 3.1
// and 1.48 us).
constexpr uint64_t PagedPrefillTileCost(int32_t kv_end) {
  return 210 + 100 * ((static_cast<uint64_t>(kv_end) + 127) / 128);
}

// An upper bound on a block's shared memory in this variant, including static shared memory.
constexpr int64_t PagedPrefillBlockBytes(PagedPrefillVariant variant, int32_t head_dim) {
  // Hopper: everything that its devices offer. Portable: the query tile and 64 tokens each of K and
  // V.
  return variant == PagedPrefillVariant::kHopper
             ? int64_t{227} << 10
             : int64_t{kPagedPrefillTileRows + 2 * 64} * head_dim * 2;
}

// The variant that kAuto selects.
constexpr PagedPrefillVariant ChoosePagedPrefillVariant(const DeviceFacts& device) {
  return device.HasHopperCode() ? PagedPrefillVariant::kHopper : PagedPrefillVariant::kPortable;
}

}  // namespace tokline
