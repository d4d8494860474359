// How paged_prefill cuts its work. Pure host code.
#pragma once

#include "kernels/common/device_facts.h"
#include "kernels/paged_prefill/packed_rows.h"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// New tokens that one tile covers: as many as have all heads of their group in its rows.
constexpr int32_t PagedPrefillTileTokens(int32_t num_q_heads, const PagedKvLayout& layout) {
  return kPagedPrefillTileRows / (num_q_heads / layout.num_kv_heads);
}

// At most so much shared memory a block of a variant takes, static shared memory included.
constexpr int64_t PagedPrefillBlockBytes(PagedPrefillVariant variant, int32_t head_dim) {
  // Hopper: every byte that its devices give. Portable: the query tile, and 64 tokens of K and V.
  return variant == PagedPrefillVariant::kHopper
             ? int64_t{227} << 10
             : int64_t{kPagedPrefillTileRows + 2 * 64} * head_dim * 2;
}

// What kAuto stands for.
constexpr PagedPrefillVariant ChoosePagedPrefillVariant(const DeviceFacts& device) {
  return device.HasHopperCode() ? PagedPrefillVariant::kHopper : PagedPrefillVariant::kPortable;
}

}  // namespace tokline
