// What each lane of chunk_decode reads: segments of contexts, whole or cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"

namespace tokline {

// A run of chunks that the same members read with the same shifts.
struct ChunkDecodeSegment {
  std::span<const SharedRun::Member> members = {};
  std::span<const ChunkDecodeRange> ranges = {};
  int32_t tiles = 0;
  int32_t weight = 1;   // time of a tile
  bool shared = false;  // a part of a run that is read once
};

// A part of a segment: `tiles` tiles from `tile_begin`.
struct ChunkDecodePiece {
  int32_t segment;
  int32_t tile_begin;
  int32_t tiles;
};

using ChunkDecodeShares = std::vector<std::vector<ChunkDecodePiece>>;  // of each lane

// Deals segments to lanes of one block per KV head; those that are shared come first. Lanes take
// whole segments, where the model of a block's time says that this is quicker. Otherwise segments
// are laid end to end and cut into equal shares, so that every SM reads equally many bytes. Each
// lane gets a share of what is shared and then one of the rest, so that the blocks that end last,
// and thus merge, are not those with the states of many sequences.
ChunkDecodeShares DealSegments(std::span<const ChunkDecodeSegment> segments, int32_t num_lanes,
                               int32_t group);

// Gives each segment a cluster, whose lanes share its tiles equally; some may get none.
ChunkDecodeShares DealToClusters(std::span<const ChunkDecodeSegment> segments,
                                 const ChunkDecodeGrid& grid);

}  // namespace tokline
