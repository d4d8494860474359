// Dispatch and launch of chunk_decode: one block per lane and KV head.
#include "kernels/chunk_decode/chunk_decode.h"

#include <algorithm>
#include <numbers>

#include "kernels/chunk_decode/chunk_decode_cluster_device.cuh"
#include "kernels/chunk_decode/chunk_decode_device.cuh"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"

namespace tokline {
namespace {

void ValidatePlan(const ChunkDecodeParams& params) {
  const ChunkDecodePlanView& plan = params.plan;
  const auto [num_lanes, cluster_lanes] = plan.grid;
  Require(num_lanes >= 1 && cluster_lanes >= 1 && cluster_lanes <= kChunkDecodeMaxClusterLanes &&
              num_lanes % cluster_lanes == 0,
          "plan.grid has ", num_lanes, " lanes in clusters of ", cluster_lanes,
          "; there must be some, in whole clusters of 1 to ", kChunkDecodeMaxClusterLanes);
  Require(
      plan.lane_task_indptr && plan.tasks && plan.ranges && plan.members && plan.seq_partial_indptr,
      "the plan lacks an array: lane_task_indptr ", plan.lane_task_indptr, ", tasks ", plan.tasks,
      ", ranges ", plan.ranges, ", members ", plan.members, ", seq_partial_indptr ",
      plan.seq_partial_indptr);
  const int64_t needed = ChunkDecodeWorkspaceBytes(params.table.num_seqs, params.max_partials,
                                                   params.num_q_heads, params.layout);
  Require(params.workspace_bytes >= needed && params.workspace &&
              reinterpret_cast<uintptr_t>(params.workspace) % 256 == 0,
          "workspace is ", params.workspace, " with ", params.workspace_bytes,
          " bytes; it must be 256 B aligned with at least ", needed);
}

}  // namespace

void Launch(const ChunkDecodeParams& params, const LaunchOptions& options) {
  Validate(params);
  const bool bundled = ChunkDecodeBundles(params.plan.grid, params.table.num_seqs,
                                          params.num_q_heads / params.layout.num_kv_heads);
  void (*kernel)(chunk_decode::Arguments) = nullptr;
  DispatchDType(params.dtype, [&]<DType kDType>() {
    DispatchHeadDim(params.layout.head_dim, [&]<int kHeadDim>() {
      using Policy = chunk_decode::Policy<kDType, kHeadDim>;
      kernel = params.plan.grid.cluster_lanes > 1 ? chunk_decode::ClusterKernel<Policy>
               : bundled                          ? chunk_decode::Kernel<Policy, true>
                                                  : chunk_decode::Kernel<Policy, false>;
    });
  });
  if (params.table.num_seqs == 0) return;
  ValidatePlan(params);
  const ChunkDecodeWorkspace workspace = ChunkDecodeWorkspaceLayout(
      params.table.num_seqs, params.max_partials, params.num_q_heads, params.layout);
  char* base = static_cast<char*>(params.workspace);
  const ChunkDecodeGrid& grid = params.plan.grid;
  const int32_t head_dim = params.layout.head_dim;
  const bool queries_with_tiles =
      grid.cluster_lanes == 1 && ChunkDecodeQueriesWithTiles(head_dim, CurrentDeviceFacts());
  const chunk_decode::Arguments arguments{
      .params = params,
      .kv_bytes = PagedKvBytes(params.layout),
      .counters = reinterpret_cast<uint32_t*>(base + workspace.counters),
      .max_sum = reinterpret_cast<float2*>(base + workspace.max_sum),
      .outputs = reinterpret_cast<float*>(base + workspace.outputs),
      .scale_log2 = params.scale * std::numbers::log2e_v<float>,
      .queries_with_tiles = queries_with_tiles};
  const auto blocks = static_cast<uint32_t>(grid.num_lanes * params.layout.num_kv_heads);
  LaunchKernel(kernel,
               {.grid = dim3(blocks),
                .block = dim3(chunk_decode::Policy<DType::kBf16, 128>::kThreads),
                .shared_bytes =
                    static_cast<size_t>(ChunkDecodeSharedBytes(head_dim) +
                                        (queries_with_tiles ? ChunkDecodeQueryBytes(head_dim) : 0)),
                .cluster = static_cast<unsigned>(grid.cluster_lanes)},
               options, arguments);
}

}  // namespace tokline
