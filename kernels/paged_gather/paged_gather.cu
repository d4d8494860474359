// Chooses and launches the gather kernel.
#include "kernels/paged_gather/paged_gather.h"

#include "kernels/device/launch.cuh"
#include "kernels/paged_gather/paged_gather_device.cuh"
#include "kernels/paged_gather/paged_gather_policy.h"

namespace tokline {

void Launch(const PagedGatherParams& params, const LaunchOptions& options) {
  Validate(params);
  Require(params.dtype != DType::kF32, "dtype is ", Name(params.dtype),
          "; paged_gather on CUDA supports bf16 and f16");
  if (params.total_tokens == 0) return;
  const int32_t tile_tokens = GatherTileTokens(params);
  const auto blocks = static_cast<unsigned>((params.total_tokens + tile_tokens - 1) / tile_tokens);
  // Bits are copied, so only the length of a row matters.
  const auto kernel = params.layout.head_dim == 64 ? PagedGatherKernel<64> : PagedGatherKernel<128>;
  LaunchKernel(kernel, {.grid = dim3(blocks), .block = dim3(kGatherThreads)}, options, params,
               tile_tokens);
}

}  // namespace tokline
