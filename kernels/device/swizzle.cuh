// Placement of 16-byte segments in shared-memory tiles such that ldmatrix and cp.async have no bank
// conflicts.
#pragma once

#include <cstdint>

#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// The byte offset of a segment in a row-major tile with kRowBytes per row. The segments of a row
// are permuted by the row's low three bits, so that the same segment of eight rows touches all 32
// banks, and so do eight segments of one row. Tiles start at multiples of 8 rows.
template <int kRowBytes>
TOKLINE_HOST_DEVICE constexpr uint32_t SwizzledOffset(uint32_t row, uint32_t segment) {
  static_assert(kRowBytes % 128 == 0);
  return row * kRowBytes + ((segment ^ (row & 7)) << 4);
}

// The two functions below derive the address of one segment from that of another without the
// arithmetic of SwizzledOffset, so that a loop needs one register for all its addresses. Tiles
// start at multiples of 128 bytes.
// Returns the address of the segment `segments` (even) further in the row. `address` must be that
// of segment 0 or 1.
TOKLINE_HOST_DEVICE constexpr uint32_t SwizzledSegment(uint32_t address, uint32_t segments) {
  return (address ^ (segments % 8 << 4)) + segments / 8 * 128;
}
// Returns the address of the same segment `rows` rows further. The low three bits of the row's
// number must have none in common with those of `rows`.
template <int kRowBytes>
TOKLINE_HOST_DEVICE constexpr uint32_t SwizzledRow(uint32_t address, uint32_t rows) {
  return (address ^ (rows % 8 << 4)) + rows * kRowBytes;
}

// Segment placement for a tile that stores whole rows of kRowBytes, for ldmatrix.
template <int kRowBytes>
struct SwizzledRows {
  static constexpr int kRowPitch = kRowBytes;  // rows r and r + 8 n lie 8 n pitches apart
  static TOKLINE_HOST_DEVICE constexpr uint32_t Offset(uint32_t row, uint32_t segment) {
    return SwizzledOffset<kRowBytes>(row, segment);
  }
};

// Segment placement for a tile split into consecutive panels with 128 bytes per row, for wgmma's
// 128-byte swizzle. Tiles start at multiples of 1024 bytes.
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
