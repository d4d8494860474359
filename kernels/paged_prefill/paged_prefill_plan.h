// How paged_prefill divides its work. Pure host code.
#pragma once

#include "kernels/common/device_facts.h"
#include "kernels/paged_prefill/packed_rows.h"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// The largest number of new tokens per tile: as many as fit into its rows, with all heads of a
// group per token.
constexpr int32_t PagedPrefillTileTokens(int32_t num_q_heads, const PagedKvLayout& layout) {
  return kPagedPrefillTileRows / (num_q_heads / layout.num_kv_heads);
}

// Tokens of a KV tile of kHopper. Contexts are cut where KV tiles begin.
inline constexpr int32_t kPagedPrefillKvTokens = 128;

// The time of a tile that walks this many context tokens, in hundredths of the time of a KV tile
// (kHopper on an H200: 3.1 and 1.48 us).
constexpr uint64_t PagedPrefillTileCost(int32_t tokens) {
  return 210 + 100 * ((static_cast<uint64_t>(tokens) + kPagedPrefillKvTokens - 1) /
                      kPagedPrefillKvTokens);
}

// The time of the merge in the same unit: a second launch and its two rounds of loads (4 us), and
// the states of each part, 65 KB written and read at 4.3 TB/s. The README compares it with
// measured times.
constexpr uint64_t PagedPrefillMergeCost(size_t num_parts) {
  return num_parts == 0 ? 0 : 270 + 2 * num_parts;
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
