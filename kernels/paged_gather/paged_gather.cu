// Selects and launches the gather kernel.
#include "kernels/paged_gather/paged_gather.h"

#include "kernels/common/rounding.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/paged_gather/paged_gather_device.cuh"
#include "kernels/paged_gather/paged_gather_plan.h"

namespace tokline {

void Launch(const PagedGatherParams& params, const LaunchOptions& options) {
  Validate(params);
  // With a larger L1, launches of 34 MB in a chain of such launches take 12 % longer, and launches
  // of 2 GB take 4 % less time. The size between them from which it pays has not been measured.
  constexpr double kLongGatherBytes = 256e6;
  const double bytes = CostOf(params).Bytes();
  // Bits are copied, so only the length of a row matters and one kernel serves both types.
  DispatchDType(params.dtype, [&]<DType>() {
    if (params.total_tokens == 0) return;
    const int32_t tile_tokens = GatherTileTokens(params);
    const auto blocks = static_cast<unsigned>(DivideUp(params.total_tokens, tile_tokens));
    DispatchHeadDim(params.layout.head_dim, [&]<int kHeadDim>() {
      LaunchKernel(PagedGatherKernel<kHeadDim>,
                   {.grid = dim3(blocks),
                    .block = dim3(kGatherThreads),
                    .bytes = bytes >= kLongGatherBytes ? bytes : 0},
                   options, params, tile_tokens);
    });
  });
}

}  // namespace tokline
