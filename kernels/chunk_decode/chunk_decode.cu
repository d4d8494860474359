// Dispatch and launch of chunk_decode: one block, or one warp, per lane and KV head, after the
// kernel of run lanes if there are any.
#include "kernels/chunk_decode/chunk_decode.h"

#include <algorithm>
#include <numbers>

#include "kernels/chunk_decode/chunk_decode_cluster_device.cuh"
#include "kernels/chunk_decode/chunk_decode_device.cuh"
#include "kernels/chunk_decode/chunk_decode_plan.h"
#include "kernels/chunk_decode/chunk_decode_warp_device.cuh"
#include "kernels/chunk_decode/shared_run.h"
#include "kernels/common/alignment.h"
#include "kernels/device/current_device.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"

namespace tokline {
namespace {

void ValidatePlan(const ChunkDecodeParams& params) {
  const ChunkDecodePlanView& plan = params.plan;
  const auto [num_lanes, cluster_lanes, block_lanes, run_lanes, takes_parts, waves] = plan.grid;
  Require(num_lanes >= 1 && cluster_lanes >= 1 && cluster_lanes <= kChunkDecodeMaxClusterLanes &&
              num_lanes % cluster_lanes == 0,
          "plan.grid has ", plan.grid, "; there must be some, in whole clusters of 1 to ",
          kChunkDecodeMaxClusterLanes);
  Require(block_lanes == 1 || (block_lanes == kChunkDecodeWarps && num_lanes % block_lanes == 0 &&
                               cluster_lanes == 1),
          "plan.grid has ", plan.grid, "; a block has one lane, or ", kChunkDecodeWarps,
          " without clusters");
  Require(!takes_parts || block_lanes > 1 || cluster_lanes > 1, "plan.grid has ", plan.grid,
          "; only clusters and lanes of a warp take parts");
  Require(plan.grid.HasWholeWaves(), "plan.grid has ", plan.grid,
          "; only clusters with parts have waves, of whole clusters");
  Require(
      run_lanes == 0 || (run_lanes > 0 && cluster_lanes == 1 && !takes_parts &&
                         CurrentDeviceFacts().HasHopperCode()),
      "plan.grid has ", plan.grid,
      "; run lanes go without parts and without clusters, and need compute capability 9.x and a "
      "build for sm_90a");
  Require(plan.lane_task_indptr && plan.tasks && plan.ranges && plan.members &&
              plan.seq_partial_indptr && plan.lane_starts,
          "the plan lacks an array: lane_task_indptr ", plan.lane_task_indptr, ", tasks ",
          plan.tasks, ", ranges ", plan.ranges, ", members ", plan.members, ", seq_partial_indptr ",
          plan.seq_partial_indptr, ", lane_starts ", plan.lane_starts);
  const int64_t needed = ChunkDecodeWorkspaceBytes(params.table.num_seqs, params.max_partials,
                                                   params.num_q_heads, params.layout);
  Require(params.workspace_bytes >= needed && params.workspace &&
              IsAligned(params.workspace, kChunkDecodeAlignment),
          "workspace is ", params.workspace, " with ", params.workspace_bytes,
          " bytes; it must be 256 B aligned with at least ", needed);
}

// Which kernel runs a plan of this grid, and how.
struct Chosen {
  void (*kernel)(chunk_decode::Arguments) = nullptr;
  LaunchShape shape;
  bool queries_with_tiles = false;
};

Chosen Choose(const ChunkDecodeParams& params) {
  const ChunkDecodeGrid& grid = params.plan.grid;
  const PagedKvLayout& layout = params.layout;
  const bool bundled =
      ChunkDecodeBundles(grid, params.table.num_seqs, params.num_q_heads / layout.num_kv_heads);
  const bool warps_add = grid.block_lanes > 1 && (grid.takes_parts || grid.run_lanes > 0);
  const bool large_clusters =
      grid.cluster_lanes > 1 && (grid.cluster_lanes > kChunkDecodeClusterLanes || grid.takes_parts);
  Chosen chosen;
  int threads = 0;
  DispatchDType(params.dtype, [&]<DType kDType>() {
    DispatchHeadDim(layout.head_dim, [&]<int kHeadDim>() {
      using Policy = chunk_decode::Policy<kDType, kHeadDim>;
      threads = Policy::kThreads;
      chosen.kernel = large_clusters           ? chunk_decode::ClusterKernel<Policy, true>
                      : grid.cluster_lanes > 1 ? chunk_decode::ClusterKernel<Policy, false>
                      : warps_add              ? chunk_decode::WarpKernel<Policy, true>
                      : grid.block_lanes > 1   ? chunk_decode::WarpKernel<Policy, false>
                      : bundled                ? chunk_decode::Kernel<Policy, true>
                                               : chunk_decode::Kernel<Policy, false>;
    });
  });
  chosen.queries_with_tiles =
      !grid.ReadsWhole() && ChunkDecodeQueriesWithTiles(layout.head_dim, CurrentDeviceFacts());
  int64_t shared_bytes = ChunkDecodeSharedBytes(layout.head_dim);
  if (grid.block_lanes > 1) shared_bytes = ChunkDecodeWarpsSharedBytes(layout.head_dim);
  if (chosen.queries_with_tiles) shared_bytes += ChunkDecodeQueryBytes(layout.head_dim);
  chosen.shape = {
      .grid = dim3(static_cast<uint32_t>(grid.num_lanes / grid.block_lanes * layout.num_kv_heads)),
      .block = dim3(static_cast<uint32_t>(threads)),
      .shared_bytes = static_cast<size_t>(shared_bytes),
      .cluster = static_cast<unsigned>(grid.cluster_lanes)};
  return chosen;
}

}  // namespace

int64_t ResidentBlocks(const ChunkDecodeParams& params) {
  Validate(params.layout);
  const Chosen chosen = Choose(params);
  return ResidentBlocks(chosen.kernel, chosen.shape);
}

void Launch(const ChunkDecodeParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.table.num_seqs == 0) return;
  ValidatePlan(params);
  const Chosen chosen = Choose(params);
  const ChunkDecodeWorkspace workspace = ChunkDecodeWorkspaceLayout(
      params.table.num_seqs, params.max_partials, params.num_q_heads, params.layout);
  char* base = static_cast<char*>(params.workspace);
  const chunk_decode::Arguments arguments{
      .params = params,
      .kv_bytes = PagedKvBytes(params.layout),
      .counters = reinterpret_cast<uint32_t*>(base + workspace.counters),
      .max_sum = reinterpret_cast<float2*>(base + workspace.max_sum),
      .outputs = reinterpret_cast<float*>(base + workspace.outputs),
      .scale_log2 = params.scale * std::numbers::log2e_v<float>,
      .queries_with_tiles = chosen.queries_with_tiles};
  LaunchOptions last = options;
  if (params.plan.grid.run_lanes > 0 && params.kv != nullptr) {  // null: there are no pages
    chunk_decode::LaunchSharedRuns(arguments, options);
    last.dependent = true;
  }
  LaunchKernel(chosen.kernel, chosen.shape, last, arguments);
}

}  // namespace tokline
