// Dispatches the norms by kind, dtype, access width and threads per row.
#include "kernels/norm/norm.h"

#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/norm/held_rms_device.cuh"
#include "kernels/norm/norm_device.cuh"
#include "kernels/norm/norm_plan.h"

namespace tokline {

void Launch(const NormParams& params, const LaunchOptions& options) {
  Validate(params);
  const NormPlan plan = PlanNorm(params);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.blocks)),
      .block = dim3(static_cast<unsigned>(plan.threads_per_row * plan.rows_per_block)),
      .bytes = CostOf(params).Bytes()};
  DispatchDType(params.dtype, [&]<DType kDType>() {
    if (params.num_tokens == 0) return;
    using T = typename DeviceType<kDType>::Type;
    if (plan.held > 0) {
      Dispatch<1, 4>("held", plan.held, [&]<int kHeld>() {
        Dispatch<32, 128, 256, 512>("threads_per_row", plan.threads_per_row, [&]<int kThreads>() {
          if constexpr (kThreads != 256 || kHeld == 1) {  // no plan has both
            LaunchKernel(HeldRmsNormKernel<HeldRmsPolicy<T, kThreads, kHeld>>, shape, options,
                         params);
          }
        });
      });
      return;
    }
    Dispatch<NormKind::kRms, NormKind::kLayer>("kind", params.kind, [&]<NormKind kKind>() {
      Dispatch<8, 1>("width", plan.width, [&]<int kWidth>() {
        Dispatch<32, 256>("threads_per_row", plan.threads_per_row, [&]<int kThreads>() {
          LaunchKernel(NormKernel<NormPolicy<kKind, T, kWidth, kThreads>>, shape, options, params);
        });
      });
    });
  });
}

}  // namespace tokline
