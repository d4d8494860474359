// How paged_prefill cuts its work. Pure host code.
#pragma once

#include "kernels/paged_prefill/packed_rows.h"
#include "kernels/paged_prefill/paged_prefill.h"

namespace tokline {

// New tokens that one tile covers: as many as have all heads of their group in its rows.
constexpr int32_t PagedPrefillTileTokens(int32_t num_q_heads, const PagedKvLayout& layout) {
  return kPagedPrefillTileRows / (num_q_heads / layout.num_kv_heads);
}

// What kAuto stands for. `built_for_sm90a`: whether this build holds code with Hopper's own
// features.
constexpr PagedPrefillVariant ChoosePagedPrefillVariant(const DeviceFacts& device,
                                                        bool built_for_sm90a) {
  return device.compute_major == 9 && built_for_sm90a ? PagedPrefillVariant::kHopper
                                                      : PagedPrefillVariant::kPortable;
}

}  // namespace tokline
