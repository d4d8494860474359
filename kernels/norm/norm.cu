// Dispatch of the norms over kind, dtype, access width and threads per row.
#include "kernels/norm/norm.h"

#include "kernels/device/launch.cuh"
#include "kernels/norm/norm_device.cuh"
#include "kernels/norm/norm_policy.h"

namespace tokline {
namespace {

using Kernel = void (*)(NormParams);

template <NormKind kKind, typename T>
Kernel KernelOf(const NormPlan& plan) {
  const bool warp_per_row = plan.threads_per_row == 32;
  if (plan.width == 8) {
    return warp_per_row ? &NormKernel<NormPolicy<kKind, T, 8, 32>>
                        : &NormKernel<NormPolicy<kKind, T, 8, 256>>;
  }
  return warp_per_row ? &NormKernel<NormPolicy<kKind, T, 1, 32>>
                      : &NormKernel<NormPolicy<kKind, T, 1, 256>>;
}

template <typename T>
Kernel KernelOf(NormKind kind, const NormPlan& plan) {
  return kind == NormKind::kRms ? KernelOf<NormKind::kRms, T>(plan)
                                : KernelOf<NormKind::kLayer, T>(plan);
}

}  // namespace

void Launch(const NormParams& params, const LaunchOptions& options) {
  Validate(params);
  ValidateLaunch(params);
  if (params.num_tokens == 0) return;
  const NormPlan plan = PlanNorm(params);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.blocks)),
      .block = dim3(static_cast<unsigned>(plan.threads_per_row * plan.rows_per_block))};
  LaunchKernel(params.dtype == DType::kBf16 ? KernelOf<__nv_bfloat16>(params.kind, plan)
                                            : KernelOf<__half>(params.kind, plan),
               shape, options, params);
}

}  // namespace tokline
