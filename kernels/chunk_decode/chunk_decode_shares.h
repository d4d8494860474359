// What each lane of chunk_decode reads: segments of contexts, whole or cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_sms.h"

namespace tokline {

// A run of chunks that the same members read with the same shifts.
struct ChunkDecodeSegment {
  // The number of tiles of a range of `tokens` tokens; the member `tiles` is the sum over all
  // ranges. For a run lane, every range begins a new tile.
  int32_t TilesOf(int32_t tokens) const;

  std::span<const SharedRun::Member> members = {};
  std::span<const ChunkDecodeRange> ranges = {};
  int32_t tiles = 0;
  bool wide = false;          // more than kChunkDecodeNarrowRows query rows
  bool shared = false;        // a part of a run that is read once
  bool by_run_lanes = false;  // such a part, with up to kChunkDecodeRunRows query rows
};

// What a lane reads of a segment: `tiles` tiles from `tile_begin`.
struct ChunkDecodePiece {
  int32_t lane;
  int32_t segment;
  int32_t tile_begin;
  int32_t tiles;
};

using ChunkDecodeShares = std::vector<ChunkDecodePiece>;  // by lane, each lane's in the order in
                                                          // which it reads them

struct ChunkDecodeDeal {
  ChunkDecodeShares shares;
  std::vector<double> lane_ends_us;  // by the model of a block's time
};

// Deals the parts of runs that run lanes read, which come first among the segments. Each is cut
// into about equal pieces. If there are fewer parts than run lanes, there are about as many pieces
// as lanes.
ChunkDecodeShares DealToRunLanes(std::span<const ChunkDecodeSegment> segments,
                                 const ChunkDecodeGrid& grid);

// Deals the other segments to lanes of one block per KV head. Those that are shared come first;
// they are laid end to end and cut into equal shares. The rest is dealt in whichever of these ways
// ends first by the model of a block's time, or has fewer pieces and ends about as early:
// - equal shares for all lanes;
// - equal shares for some of the lanes, if nothing is shared and there are fewer segments than
// lanes;
// - whole segments;
// - whole segments, and parts of the longest ones.
// Each lane gets a share of what is shared and then one of the rest, so that the blocks that end
// last, and thus merge, are not those that hold states of many sequences. Lanes are numbered so
// that the SMs have equally much to read. The result includes the shares of the run lanes.
ChunkDecodeDeal DealSegments(std::span<const ChunkDecodeSegment> segments, int32_t num_seqs,
                             const ChunkDecodeGrid& grid, int32_t group, const ChunkDecodeSms& sms);

// Deals segments to warp lanes, the longest first and each to the lane that would end first, and
// deals to run lanes what these read. If lanes take parts, a segment of more than WarpPartTiles
// tiles is dealt in equal parts. In total, cutting adds fewer parts than there are lanes. Lanes are
// numbered as those of DealSegments.
ChunkDecodeDeal DealToWarps(std::span<const ChunkDecodeSegment> segments,
                            const ChunkDecodeGrid& grid, int32_t group, const ChunkDecodeSms& sms);

// Returns the lanes of `count` tasks that read nothing, in ascending order. Each task goes to the
// lane that would end first, and takes `task_us` there.
std::vector<int32_t> LanesOfEmptyTasks(std::span<const double> lane_ends_us, int64_t count,
                                       double task_us);

// Gives each segment a cluster, whose lanes share its tiles equally; some may get none. If the grid
// takes parts, the clusters are dealt so that no lane has more tiles than it must.
ChunkDecodeShares DealToClusters(std::span<const ChunkDecodeSegment> segments,
                                 const ChunkDecodeGrid& grid);

}  // namespace tokline
