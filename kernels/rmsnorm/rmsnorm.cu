// Dispatch of RMSNorm over dtype, access width and threads a row.
#include "kernels/device/launch.cuh"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rmsnorm/rmsnorm_device.cuh"
#include "kernels/rmsnorm/rmsnorm_policy.h"

namespace tokline {
namespace {

using Kernel = void (*)(RmsNormArgs);

template <typename T>
Kernel KernelOf(const RmsNormPlan& plan) {
  const bool warp_per_row = plan.threads_per_row == 32;
  if (plan.width == 8) {
    return warp_per_row ? &RmsNormKernel<RmsNormPolicy<T, 8, 32>>
                        : &RmsNormKernel<RmsNormPolicy<T, 8, 256>>;
  }
  return warp_per_row ? &RmsNormKernel<RmsNormPolicy<T, 1, 32>>
                      : &RmsNormKernel<RmsNormPolicy<T, 1, 256>>;
}

}  // namespace

void Launch(const RmsNormParams& params, const LaunchOptions& options) {
  Validate(params);
  ValidateLaunch(params);
  if (params.num_tokens == 0) return;
  const RmsNormPlan plan = PlanRmsNorm(params);
  const RmsNormArgs args{.x = params.x,
                         .add = params.add,
                         .weight = params.weight,
                         .residual_out = params.residual_out,
                         .out = params.out,
                         .x_stride = params.x_stride,
                         .add_stride = params.add_stride,
                         .residual_out_stride = params.residual_out_stride,
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
