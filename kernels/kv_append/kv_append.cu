// Selects and launches the append kernel.
#include "kernels/kv_append/kv_append.h"

#include "kernels/common/rounding.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/kv_append/kv_append_device.cuh"
#include "kernels/kv_append/kv_append_plan.h"

namespace tokline {
namespace {

template <typename T, int kHeadDim, RowOp kOp, int kRows>
void LaunchPolicy(const KvAppendParams& params, const KvAppendPlan& plan,
                  const LaunchOptions& options) {
  using Policy = KvAppendPolicy<T, kHeadDim, kOp, kRows>;
  const int64_t groups = params.num_tokens * plan.groups_per_token;
  const auto blocks = static_cast<unsigned>(DivideUp(groups, Policy::kBlockGroups));
  LaunchKernel(
      KvAppendKernel<Policy>,
      {.grid = dim3(blocks), .block = dim3(Policy::kThreads), .bytes = CostOf(params).Bytes()},
      options, params, plan);
}

}  // namespace

void Launch(const KvAppendParams& params, const LaunchOptions& options) {
  Validate(params);
  DispatchDType(params.dtype, [&]<DType kDType>() {
    if (params.num_tokens == 0) return;
    const KvAppendPlan plan = PlanKvAppend(params);
    DispatchHeadDim(params.layout.head_dim, [&]<int kHeadDim>() {
      Dispatch<1, 2>("rows_per_group", plan.rows_per_group, [&]<int kRows>() {
        if (plan.op == RowOp::kCopy) {  // copies bits: any 16-bit type works
          LaunchPolicy<__half, kHeadDim, RowOp::kCopy, kRows>(params, plan, options);
        } else {
          using T = typename DeviceType<kDType>::Type;
          LaunchPolicy<T, kHeadDim, RowOp::kTransform, kRows>(params, plan, options);
        }
      });
    });
  });
}

}  // namespace tokline
