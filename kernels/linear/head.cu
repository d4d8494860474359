// Makes the tensor maps of Linear's kHead and launches it.
#include "kernels/linear/head.h"

#include "kernels/device/convert.cuh"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/linear/head_device.cuh"

namespace tokline {

void LaunchHead(const LinearParams& params, const HeadPlan& plan, const LaunchOptions& options) {
  const int64_t k = params.in_features, tokens = params.num_tokens;
  const HeadArgs args{
      .params = params,
      .plan = plan,
      .weight = PanelMap(params.dtype, params.weight, params.out_features, k, k, kHeadUnit),
      .x = PanelMap(params.dtype, params.x, tokens, k, tokens == 1 ? k : params.x_stride, tokens)};
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.grid)),
                          .block = dim3(kHeadThreads),
                          .shared_bytes = static_cast<size_t>(plan.shared_bytes)};
  DispatchDType(params.dtype, [&]<DType kDType>() {
    using T = typename DeviceType<kDType>::Type;
    Dispatch<64, 128>("token_tile", plan.token_tile, [&]<int kTokens>() {
      LaunchKernel(&HeadLinearKernel<HeadPolicy<T, kTokens>>, shape, options, args);
    });
  });
}

}  // namespace tokline
