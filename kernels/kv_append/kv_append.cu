// Chooses and launches the append kernel.
#include "kernels/kv_append/kv_append.h"

#include "kernels/device/launch.cuh"
#include "kernels/kv_append/kv_append_device.cuh"
#include "kernels/kv_append/kv_append_policy.h"

namespace tokline {
namespace {

template <typename Policy>
void LaunchPolicy(const KvAppendParams& params, const KvAppendPlan& plan,
                  const LaunchOptions& options) {
  constexpr int kBlockRows = Policy::kBlockRows * Policy::kRowsInFlight;
  const auto blocks = static_cast<unsigned>((int64_t{plan.num_rows} + kBlockRows - 1) / kBlockRows);
  LaunchKernel(KvAppendKernel<Policy>, {.grid = dim3(blocks), .block = dim3(Policy::kThreads)},
               options, params, plan);
}

template <int kHeadDim>
void Dispatch(const KvAppendParams& params, const KvAppendPlan& plan,
              const LaunchOptions& options) {
  if (plan.op == RowOp::kCopy) {  // bits: any 16-bit type will do
    LaunchPolicy<KvAppendPolicy<__half, kHeadDim, RowOp::kCopy>>(params, plan, options);
  } else if (params.dtype == DType::kF16) {
    LaunchPolicy<KvAppendPolicy<__half, kHeadDim, RowOp::kTransform>>(params, plan, options);
  } else {
    LaunchPolicy<KvAppendPolicy<__nv_bfloat16, kHeadDim, RowOp::kTransform>>(params, plan, options);
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
