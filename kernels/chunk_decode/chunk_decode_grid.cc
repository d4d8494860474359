// Chooses the grid of a step of chunk_decode: the one that the model of a block's time expects to
// end first. Few sequences get clusters of lanes, many or short ones get warp lanes, and all others
// get block lanes. Before these, run lanes read what many sequences share.
#include <algorithm>
#include <limits>
#include <ostream>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_sharing.h"
#include "kernels/chunk_decode/chunk_decode_times.h"
#include "kernels/common/rounding.h"

namespace tokline {
namespace {

// How many clusters of this many lanes the device runs at the same time for each KV head.
int32_t ClustersAtOnce(int32_t lanes, const PagedKvLayout& layout, const DeviceFacts& device) {
  if (!device.HasClusters() || lanes > device.max_cluster_blocks) return 0;
  // An SM has room for four blocks at head_dim 64; using three leaves some room for the kernels
  // before and after.
  const int64_t blocks_per_sm =
      std::min<int64_t>(3, ChunkDecodeBlocksPerSm(layout.head_dim, device));
  return device.ClustersAtOnce(lanes, blocks_per_sm) / layout.num_kv_heads;
}

}  // namespace

ChunkDecodeGrid ChunkDecodeFullGrid(const PagedKvLayout& layout, const DeviceFacts& device) {
  const int64_t blocks = device.sm_count * ChunkDecodeBlocksPerSm(layout.head_dim, device);
  return {.num_lanes = static_cast<int32_t>(std::max<int64_t>(1, blocks / layout.num_kv_heads)),
          .cluster_lanes = 1};
}

ChunkDecodeGrid ChunkDecodeClusterGrid(int32_t num_seqs, const PagedKvLayout& layout,
                                       int32_t max_lanes, const DeviceFacts& device) {
  int32_t cluster = max_lanes;
  while (cluster > 1 && num_seqs > ClustersAtOnce(cluster, layout, device)) cluster /= 2;
  return {.num_lanes = num_seqs * cluster, .cluster_lanes = cluster};
}

ChunkDecodeGrid ChunkDecodePartsGrid(int32_t num_seqs, const PagedKvLayout& layout,
                                     int32_t cluster_lanes, const DeviceFacts& device) {
  const int32_t at_once = ClustersAtOnce(cluster_lanes, layout, device);
  const int32_t most_waves = cluster_lanes > kChunkDecodeClusterLanes ? 1 : kChunkDecodeMaxWaves;
  int32_t waves = 1;
  while (waves <= most_waves && waves * at_once < 2 * num_seqs) ++waves;
  if (at_once == 0 || waves > most_waves) return {};
  return {.num_lanes = waves * at_once * cluster_lanes,
          .cluster_lanes = cluster_lanes,
          .takes_parts = true,
          .waves = static_cast<int8_t>(waves)};
}

ChunkDecodeGrid ChunkDecodeWarpGrid(const PagedKvLayout& layout, const DeviceFacts& device) {
  const int64_t block_bytes = ChunkDecodeWarpsSharedBytes(layout.head_dim);
  if (block_bytes > device.shared_bytes_per_block) return {};
  const int64_t blocks =
      device.sm_count * ChunkDecodeBlocksPerSmOf(block_bytes, layout.head_dim, device);
  const int64_t of_head = std::max<int64_t>(1, blocks / layout.num_kv_heads);
  return {.num_lanes = static_cast<int32_t>(of_head) * kChunkDecodeWarps,
          .cluster_lanes = 1,
          .block_lanes = kChunkDecodeWarps};
}

std::ostream& operator<<(std::ostream& out, const ChunkDecodeGrid& grid) {
  out << grid.num_lanes << " lanes";
  if (grid.cluster_lanes > 1) out << " in clusters of " << grid.cluster_lanes;
  if (grid.block_lanes > 1) out << ", " << grid.block_lanes << " to a block";
  if (grid.run_lanes > 0) out << " after " << grid.run_lanes << " run lanes";
  if (grid.takes_parts) out << ", with parts";
  if (grid.waves > 1) out << ", in " << int32_t{grid.waves} << " waves";
  return out;
}

std::vector<ChunkDecodeGrid> ChunkDecodeGrids(int32_t num_seqs, const PagedKvLayout& layout,
                                              const DeviceFacts& device) {
  std::vector<ChunkDecodeGrid> grids = {ChunkDecodeFullGrid(layout, device)};
  if (num_seqs == 0) return grids;
  // Smaller ones first: of equal times the first is chosen. Clusters of two are tried where no
  // larger ones fit.
  for (int32_t max_lanes = 4; max_lanes <= kChunkDecodeMaxClusterLanes; max_lanes *= 2) {
    const ChunkDecodeGrid clusters = ChunkDecodeClusterGrid(num_seqs, layout, max_lanes, device);
    if (clusters.cluster_lanes > 1 && clusters != grids.back()) grids.push_back(clusters);
  }
  for (const int32_t lanes : {kChunkDecodeClusterLanes, kChunkDecodeMaxClusterLanes}) {
    const ChunkDecodeGrid parts = ChunkDecodePartsGrid(num_seqs, layout, lanes, device);
    if (parts.num_lanes > 0) grids.push_back(parts);
  }
  ChunkDecodeGrid warps = ChunkDecodeWarpGrid(layout, device);
  if (warps.num_lanes > 0) {
    grids.push_back(warps);
    warps.takes_parts = true;
    grids.push_back(warps);
  }
  return grids;
}

ChunkDecodeGrid ChooseChunkDecodeGrid(const ChunkDecodeLoad& load, const PagedKvLayout& layout,
                                      int32_t group, const DeviceFacts& device) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, device);
  if (load.num_seqs == 0) return full;
  return std::ranges::min(ChunkDecodeGrids(load.num_seqs, layout, device), {},
                          [&](const ChunkDecodeGrid& grid) {
                            return GridUs(load, grid, full, layout.head_dim, group);
                          });
}

std::vector<ChunkDecodeGrid> ChunkDecodeRunGrids(const PagedKvLayout& layout,
                                                 const DeviceFacts& device) {
  if (!device.HasHopperCode()) return {};
  std::vector<ChunkDecodeGrid> grids = {ChunkDecodeFullGrid(layout, device),
                                        ChunkDecodeWarpGrid(layout, device)};
  for (ChunkDecodeGrid& grid : grids) {
    grid.run_lanes = std::max(1, device.sm_count / layout.num_kv_heads);
  }
  return grids;
}

ChunkDecodeGrid ChooseChunkDecodeRunGrid(std::span<const SharedRun> runs,
                                         std::span<const int64_t> lengths,
                                         const PagedKvLayout& layout, int32_t group,
                                         const DeviceFacts& device, ChunkSharing sharing) {
  const ChunkDecodeGrid full = ChunkDecodeFullGrid(layout, device);
  const auto num_seqs = static_cast<int32_t>(lengths.size());
  // Run lanes count arrivals, but add no states, so no bundle may end with one of theirs.
  if (!device.HasHopperCode() || ChunkDecodeBundles(full, num_seqs, group)) return full;
  std::vector<int64_t> own(lengths.begin(), lengths.end());
  int64_t parts = 0, tiles = 0, cached_tokens = 0;
  bool all = true;
  for (const SharedRun& run : runs) {
    if (!RunLanesRead(run, group)) {
      all = false;
      continue;
    }
    if (run.tokens == 0) continue;
    const int64_t of_run = NumRunParts(static_cast<int32_t>(run.members.size()), group);
    parts += of_run;
    tiles += of_run * DivideUp(run.tokens, int64_t{kChunkDecodeTileTokens});
    cached_tokens += run.tokens * (std::ssize(run.members) - 1);
    for (const SharedRun::Member& member : run.members)
      own[static_cast<size_t>(member.seq)] -= run.tokens;
  }
  if (parts == 0) return full;
  const std::vector<ChunkDecodeGrid> grids = ChunkDecodeRunGrids(layout, device);
  const ChunkDecodeGrid &blocks = grids[0], &warps = grids[1];
  // Each sequence gets about this many partial states from run lanes.
  const auto states = static_cast<int32_t>(std::max<int64_t>(1, blocks.run_lanes / parts));
  const ChunkDecodeLoad load = LoadOf(own);
  const double blocks_us =
      LanesUs(load, full, group) + DivideUp(num_seqs, full.num_lanes) *
                                       (kChunkDecodeTimes.state_us + kChunkDecodeTimes.merge_us +
                                        AddStatesUs(states + 1, group));
  const double warps_us =
      WarpsUs(load, warps, full, group) + RunStatesUs(states, num_seqs, warps, group);
  const bool takes_warps = all && warps_us < blocks_us;  // warps share nothing else
  const ChunkDecodeGrid& grid = takes_warps ? warps : blocks;
  if (sharing == ChunkSharing::kAlways) return grid;
  const double run_us =
      kChunkDecodeTimes.run_us +
      RunTaskUs(static_cast<int32_t>(DivideUp(tiles, int64_t{blocks.run_lanes}))) +
      (takes_warps ? warps_us : blocks_us);
  const ChunkDecodeLoad alone = LoadOf(lengths);
  const double tile_us =
      SharedTileUs(static_cast<double>(cached_tokens), static_cast<double>(alone.tokens));
  double alone_us = std::numeric_limits<double>::infinity();
  for (const ChunkDecodeGrid& other : ChunkDecodeGrids(num_seqs, layout, device)) {
    alone_us = std::min(alone_us, GridUs(alone, other, full, layout.head_dim, group, tile_us));
  }
  return run_us + kChunkDecodeTimes.least_gain_us < alone_us ? grid : full;
}

}  // namespace tokline
