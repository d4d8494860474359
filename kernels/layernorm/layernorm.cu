// Dispatch of LayerNorm over dtype, access width and threads a row.
#include "kernels/layernorm/layernorm.h"

#include "kernels/device/launch.cuh"
#include "kernels/layernorm/layernorm_device.cuh"
#include "kernels/layernorm/layernorm_policy.h"

namespace tokline {
namespace {

using Kernel = void (*)(LayerNormArgs);

template <typename T>
Kernel KernelOf(const LayerNormPlan& plan) {
  const bool warp_per_row = plan.threads_per_row == 32;
  if (plan.width == 8) {
    return warp_per_row ? &LayerNormKernel<LayerNormPolicy<T, 8, 32>>
                        : &LayerNormKernel<LayerNormPolicy<T, 8, 256>>;
  }
  return warp_per_row ? &LayerNormKernel<LayerNormPolicy<T, 1, 32>>
                      : &LayerNormKernel<LayerNormPolicy<T, 1, 256>>;
}

}  // namespace

void Launch(const LayerNormParams& params, const LaunchOptions& options) {
  Validate(params);
  ValidateLaunch(params);
  if (params.num_tokens == 0) return;
  const LayerNormPlan plan = PlanLayerNorm(params);
  const LayerNormArgs args{.x = params.x,
                           .weight = params.weight,
                           .bias = params.bias,
                           .out = params.out,
                           .x_stride = params.x_stride,
                           .out_stride = params.out_stride,
                           .num_tokens = params.num_tokens,
                           .hidden_size = static_cast<int32_t>(params.hidden_size),
                           .eps = params.eps};
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.blocks)),
      .block = dim3(static_cast<unsigned>(plan.threads_per_row * plan.rows_per_block))};
  LaunchKernel(
      params.dtype == DType::kBf16 ? KernelOf<__nv_bfloat16>(plan) : KernelOf<__half>(plan), shape,
      options, args);
}

}  // namespace tokline
