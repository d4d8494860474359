// Makes the tensor maps of Linear's kHead and launches it.
#include "kernels/linear/head.h"

#include "kernels/device/convert.cuh"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/linear/head_device.cuh"

namespace tokline {
namespace {

// Boxes of `box_rows` rows of a matrix, 64 elements wide; zeros beyond the last row.
CUtensorMap PanelMap(DType dtype, const void* data, int64_t rows, int64_t columns, int64_t stride,
                     int64_t box_rows) {
  return MakeTensorMap<3>(
      {.dtype = dtype,
       .data = data,
       .sizes = {64, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns) / 64},
       .strides = {2 * static_cast<uint64_t>(stride), 128},
       .box = {64, static_cast<uint32_t>(box_rows), 1}});
}

}  // namespace

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
