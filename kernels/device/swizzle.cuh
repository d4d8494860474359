// Placement of 16-byte segments in shared tiles, free of bank conflicts for ldmatrix and cp.async.
#pragma once

#include <cstdint>

#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// Byte offset of a segment in a row-major tile of kRowBytes a row: segments of a row trade places
// by the row's low three bits, so that the same segment of eight rows, and eight segments of one
// row, each touch all 32 banks. Tiles start at multiples of 8 rows.
template <int kRowBytes>
TOKLINE_HOST_DEVICE constexpr uint32_t SwizzledOffset(uint32_t row, uint32_t segment) {
  static_assert(kRowBytes % 128 == 0);
  return row * kRowBytes + ((segment ^ (row & 7)) << 4);
}

}  // namespace tokline
