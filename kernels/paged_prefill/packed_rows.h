// Packs the query heads that share a KV head as neighbouring rows of one query tile.
#pragma once

#include <cstdint>

#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// The rows of one tile, in every variant: row = token * group + head within the group.
inline constexpr int32_t kPagedPrefillTileRows = 128;
inline constexpr int32_t kPagedPrefillMaxGroup = 16;

struct PackedRows {
  int32_t group;    // query heads per KV head, 1 to 16
  int32_t inverse;  // ceil(2^16 / group): exact for all rows of a tile

  TOKLINE_HOST_DEVICE explicit constexpr PackedRows(int32_t group_size)
      : group(group_size), inverse((65536 + group_size - 1) / group_size) {}

  TOKLINE_HOST_DEVICE constexpr int32_t Token(int32_t row) const { return row * inverse >> 16; }
  TOKLINE_HOST_DEVICE constexpr int32_t Head(int32_t row) const { return row - Token(row) * group; }
};

}  // namespace tokline
