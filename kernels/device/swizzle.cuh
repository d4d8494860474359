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

// Where a tile of kRowBytes a row keeps a row's segment: whole rows, for ldmatrix.
template <int kRowBytes>
struct SwizzledRows {
  static constexpr int kRowPitch = kRowBytes;  // rows r and r + 8 n lie 8 n pitches apart
  static TOKLINE_HOST_DEVICE constexpr uint32_t Offset(uint32_t row, uint32_t segment) {
    return SwizzledOffset<kRowBytes>(row, segment);
  }
};

// The same in panels of 128 bytes a row, one after the other, for wgmma's 128-byte swizzle. Tiles
// start at multiples of 1024 bytes.
template <int kRowBytes, int kRows>
struct SwizzledPanels {
  static_assert(kRowBytes % 128 == 0 && kRows % 8 == 0);
  static constexpr int kRowPitch = 128;
  static constexpr int kPanelBytes = kRows * 128;
  static TOKLINE_HOST_DEVICE constexpr uint32_t Offset(uint32_t row, uint32_t segment) {
    return segment / 8 * kPanelBytes + SwizzledOffset<128>(row, segment % 8);
  }
};

}  // namespace tokline
