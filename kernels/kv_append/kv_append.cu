// Chooses and launches the append kernel.
#include "kernels/kv_append/kv_append.h"

#include "kernels/common/rounding.h"
#include "kernels/device/launch.cuh"
#include "kernels/kv_append/kv_append_device.cuh"
#include "kernels/kv_append/kv_append_policy.h"

namespace tokline {
namespace {

template <typename T, int kHeadDim, RowOp kOp, int kRows>
void LaunchPolicy(const KvAppendParams& params, const KvAppendPlan& plan,
                  const LaunchOptions& options) {
  using Policy = KvAppendPolicy<T, kHeadDim, kOp, kRows>;
  const int64_t groups = params.num_tokens * plan.groups_per_token;
  const auto blocks = static_cast<unsigned>(DivideUp(groups, Policy::kBlockGroups));
  LaunchKernel(KvAppendKernel<Policy>, {.grid = dim3(blocks), .block = dim3(Policy::kThreads)},
               options, params, plan);
}

template <typename T, int kHeadDim, RowOp kOp>
void DispatchRows(const KvAppendParams& params, const KvAppendPlan& plan,
                  const LaunchOptions& options) {
  if (plan.rows_per_group == 1) {
    LaunchPolicy<T, kHeadDim, kOp, 1>(params, plan, options);
  } else {
    LaunchPolicy<T, kHeadDim, kOp, 2>(params, plan, options);
  }
}

template <int kHeadDim>
void Dispatch(const KvAppendParams& params, const KvAppendPlan& plan,
              const LaunchOptions& options) {
  if (plan.op == RowOp::kCopy) {  // bits: any 16-bit type will do
    DispatchRows<__half, kHeadDim, RowOp::kCopy>(params, plan, options);
  } else if (params.dtype == DType::kF16) {
    DispatchRows<__half, kHeadDim, RowOp::kTransform>(params, plan, options);
  } else {
    DispatchRows<__nv_bfloat16, kHeadDim, RowOp::kTransform>(params, plan, options);
  }
}

}  // namespace

void Launch(const KvAppendParams& params, const LaunchOptions& options) {
  Validate(params);
  Require(params.dtype != DType::kF32, "dtype is ", Name(params.dtype),
          "; kv_append on CUDA supports bf16 and f16");
  if (params.num_tokens == 0) return;
  const KvAppendPlan plan = PlanKvAppend(params);
  if (params.layout.head_dim == 64) {
    Dispatch<64>(params, plan, options);
  } else {
    Dispatch<128>(params, plan, options);
  }
}

}  // namespace tokline
