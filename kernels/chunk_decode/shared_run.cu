#include "kernels/chunk_decode/shared_run.h"

#include "kernels/chunk_decode/shared_run_device.cuh"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"

namespace tokline::chunk_decode {

void LaunchSharedRuns(const Arguments& arguments, const LaunchOptions& options) {
  const ChunkDecodeParams& params = arguments.params;
  const PagedKvLayout& layout = params.layout;
  const int32_t group = params.num_q_heads / layout.num_kv_heads;
  const RunArguments run{.args = arguments,
                         .q = QueryMap(params.dtype, params.q, layout.head_dim, params.num_q_heads,
                                       params.table.num_seqs, params.q_stride, group, 1),
                         .kv = PagedKvMap(params.dtype, params.kv, layout,
                                          layout.BoxTokens(kChunkDecodeRunTileTokens))};
  const auto blocks = static_cast<unsigned>(params.plan.grid.run_lanes * layout.num_kv_heads);
  DispatchDType(params.dtype, [&]<DType kDType>() {
    DispatchHeadDim(layout.head_dim, [&]<int kHeadDim>() {
      using Policy = RunPolicy<kDType, kHeadDim>;
      LaunchKernel(SharedRunKernel<Policy>,
                   {.grid = dim3(blocks),
                    .block = dim3(Policy::kThreads),
                    .shared_bytes = RunShared<Policy>::kBytes},
                   options, run);
    });
  });
}

}  // namespace tokline::chunk_decode
