// Host decisions for Linear's kTile: how a weight is divided into tiles and K into splits.
#pragma once

#include <cstdint>

#include "kernels/common/device_facts.h"

namespace tokline {

struct LinearParams;

// With up to this many tokens a plan is chosen by its weights alone.
inline constexpr int32_t kFewTileTokens = 16;
// Elements of K per stage of the ring.
inline constexpr int32_t kTileBlockK = 64;
inline constexpr int32_t kTileConsumerGroups = 2;                        // warpgroups that multiply
inline constexpr int32_t kTileThreads = 128 * kTileConsumerGroups + 32;  // and the producer warp
// Padding, in floats, after a tile's rows of one token's sums, chosen so that the next token's sums
// begin in other banks.
inline constexpr int32_t kTileSumsPadding = 8;

// A block multiplies `token_tile` tokens with `rows` weight rows over its share of K.
struct TilePlan {
  int32_t token_tile = 0;   // 64 or 128: the rows that are multiplied
  int32_t token_tiles = 1;  // with all of which each tile of weight rows is multiplied
  // Of a token tile. The last one begins so early that it has as many as the others, and leaves
  // those that it shares with the one before it to that one.
  int32_t tokens = 0;
  // Of x per stage: the tokens rounded up to eight, or more, so that wgmma stays within the stage.
  int32_t x_rows = 0;
  int32_t rows = 0;    // per tile; with gated_silu half of them are gate rows, half up rows
  int32_t splits = 0;  // of K: blocks per cluster, which share a tile; 1, 2 or 4
  int32_t tiles = 0;
  int32_t k_blocks = 0;    // of kTileBlockK
  int32_t stages = 0;      // of the ring
  int32_t data_bytes = 0;  // of the ring, and of the sums that lie there later
  int64_t shared_bytes = 0;

  int32_t Grid() const { return tiles * token_tiles * splits; }
  // The number of weight rows that a warpgroup multiplies with its tokens: wgmma's columns.
  int32_t Columns() const { return token_tile == 64 ? rows / 2 : rows; }
};

// With up to this many tokens there is one token tile.
inline constexpr int32_t kLargestTokenTile = 128;
// The numbers of wgmma columns for which the kernel is compiled, for token tiles of 64 and of 128.
inline constexpr int32_t kTileColumns64[] = {32, 48, 64, 80};
inline constexpr int32_t kTileColumns128[] = {32, 48, 64, 80, 96, 128, 160};

// Returns the plan with these tiles, columns and splits. There must be at most as many splits as
// blocks of K.
TilePlan TileOf(const LinearParams& params, int32_t token_tile, int32_t columns, int32_t splits);

// Chooses the tile and the splits for which the model of its time, in tile_plan.cc, is smallest.
TilePlan PlanTile(const LinearParams& params, const DeviceFacts& device);

}  // namespace tokline
