// Launches the two sampling kernels.
#include "kernels/sampling/sampling.h"

#include "kernels/device/current_device.h"
#include "kernels/device/launch.cuh"
#include "kernels/sampling/chunk_scan_device.cuh"
#include "kernels/sampling/pick_device.cuh"
#include "kernels/sampling/sampling_plan.h"

namespace tokline {

void Launch(const SamplingParams& params, const LaunchOptions& options) {
  Validate(params);
  SamplingPlan plan = PlanSampling(params);
  if (params.num_rows == 0) return;
  const DeviceFacts& device = CurrentDeviceFacts();
  plan.ranks = PickRanks(params.num_rows, plan.num_chunks, device);
  const auto rows = static_cast<unsigned>(params.num_rows);
  const auto ranks = static_cast<unsigned>(plan.ranks);
  const int32_t scans = ChunkScanGrid(params.num_rows, plan.num_chunks, device);
  LaunchKernel(ChunkScanKernel,
               {.grid = dim3(static_cast<unsigned>(scans)), .block = dim3(kChunkScanThreads)},
               options, params, plan);
  // The second kernel waits for the first, so it may always be launched before the first one ends.
  LaunchKernel(ranks > 1 ? PickKernel<true> : PickKernel<false>,
               {.grid = dim3(rows * ranks),
                .block = dim3(kPickThreads),
                .shared_bytes = sizeof(PickStorage),
                .cluster = ranks},
               {.stream = options.stream, .dependent = true}, params, plan);
}

}  // namespace tokline
