// The segments of a step: runs of chunks that the same members read with the same shifts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_shares.h"

namespace tokline {

// The segments of a table: parts of shared runs, then what sequences read alone.
class ChunkDecodeSegments {
 public:
  // The runs must outlive the segments, which point to the runs' members. With run_lanes, the
  // segments that these read come first.
  ChunkDecodeSegments(const ChunkTableView& table, int32_t group, std::span<const SharedRun> runs,
                      bool run_lanes);
  ChunkDecodeSegments(const ChunkDecodeSegments&) = delete;
  ChunkDecodeSegments& operator=(const ChunkDecodeSegments&) = delete;

  std::span<const ChunkDecodeSegment> All() const { return segments_; }

 private:
  void AddChunk(const ChunkTableView& table, int32_t chunk, ChunkDecodeSegment& segment);
  // Cuts a shared run into parts of members whose query rows fit one block.
  void AddRun(const ChunkTableView& table, const SharedRun& run, int32_t group, bool by_run_lanes);
  void AddAlone(const ChunkTableView& table, std::span<const SharedRun> runs);

  std::vector<ChunkDecodeSegment> segments_;
  // The data that the segments point to. Both have room for everything from the beginning.
  std::vector<ChunkDecodeRange> ranges_;
  std::vector<SharedRun::Member> members_;
};

// Whether each sequence reads at most one segment, and that one alone, apart from what run lanes
// read for it.
bool OneSegmentEach(std::span<const ChunkDecodeSegment> segments);

// Appends the ranges that cover a piece of a segment.
void AddRanges(const ChunkDecodeSegment& segment, const ChunkDecodePiece& piece,
               std::vector<ChunkDecodeRange>& ranges);

}  // namespace tokline
