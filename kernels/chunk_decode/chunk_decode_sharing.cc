#include "kernels/chunk_decode/chunk_decode_sharing.h"

#include <algorithm>
#include <vector>

#include "kernels/chunk_decode/chunk_decode_policy.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

constexpr ChunkDecodeTimes kTimes;
constexpr int32_t kNarrowRows = 16;
constexpr int32_t kMostNarrowParts = 3;

// Of a tile of a run, in all parts.
double TileUs(int32_t members, int32_t group) {
  double us = 0;
  for (bool first = true; members > 0; first = false) {
    const int32_t part = SharedPartMembers(members, group);
    us += part * group > kNarrowRows ? kTimes.wide_tile_us
          : first                    ? kTimes.memory_tile_us
                                     : kTimes.cached_tile_us;
    members -= part;
  }
  return us;
}

}  // namespace

int32_t SharedPartMembers(int32_t members, int32_t group) {
  const int32_t narrow = kNarrowRows / group;
  const bool few = members <= kMostNarrowParts * narrow;
  return std::min(members, few ? narrow : kChunkDecodeMaxRows / group);
}

int32_t NumSharedParts(int32_t members, int32_t group) {
  int32_t parts = 0;
  for (; members > 0; members -= SharedPartMembers(members, group)) ++parts;
  return parts;
}

bool SharingPays(int32_t members, int64_t tiles, int32_t group) {
  const double alone_us = kTimes.memory_tile_us + (members - 1) * kTimes.cached_tile_us;
  const double saved_us = static_cast<double>(tiles) * (alone_us - TileUs(members, group));
  return saved_us >
         members * group * kTimes.merged_row_us + NumSharedParts(members, group) * kTimes.task_us;
}

double EstimateUs(const ChunkDecodePlan& plan, int32_t group, double tile_us) {
  struct Last {
    double end_us = -1;
    size_t lane = 0;
  };
  std::vector<double> lane_us(static_cast<size_t>(plan.grid.num_lanes), 0);
  std::vector<Last> last(static_cast<size_t>(plan.num_seqs));  // task with a state of a sequence
  for (size_t lane = 0; lane < lane_us.size(); ++lane) {
    for (int32_t t = plan.lane_task_indptr[lane]; t < plan.lane_task_indptr[lane + 1]; ++t) {
      const ChunkDecodeTask& task = plan.tasks[static_cast<size_t>(t)];
      int64_t tiles = 0;
      for (int32_t r = task.range_begin; r < task.range_end; ++r) {
        const ChunkDecodeRange& range = plan.ranges[static_cast<size_t>(r)];
        tiles += DivideUp(range.token_end - range.token_begin, kChunkDecodeTileTokens);
      }
      const bool wide = task.member_count * group > kNarrowRows;
      lane_us[lane] +=
          kTimes.task_us + static_cast<double>(tiles) * (wide ? kTimes.wide_tile_us : tile_us);
      for (int32_t m = task.member_begin; m < task.member_begin + task.member_count; ++m) {
        const ChunkDecodeMember& member = plan.members[static_cast<size_t>(m)];
        Last& of = last[static_cast<size_t>(member.seq)];
        if (member.partial >= 0 && lane_us[lane] > of.end_us) of = {lane_us[lane], lane};
      }
    }
  }
  for (const Last& of : last) {
    if (of.end_us >= 0) lane_us[of.lane] += group * kTimes.merged_row_us;
  }
  return lane_us.empty() ? 0 : *std::ranges::max_element(lane_us);
}

}  // namespace tokline
