#include "kernels/linear/head_plan.h"

#include <algorithm>

#include "kernels/common/rounding.h"
#include "kernels/linear/linear.h"

namespace tokline {

HeadPlan PlanHead(const LinearParams& params, const DeviceFacts& device) {
  constexpr int64_t kRingBytes = int64_t{208} << 10, kBarrierBytes = 16, kAlignment = 1024;
  HeadPlan plan;
  plan.token_tile = params.num_tokens <= 64 ? 64 : 128;
  plan.units = static_cast<int32_t>(DivideUp(params.out_features, int64_t{kHeadUnit}));
  plan.grid = std::min(device.sm_count, plan.units);
  plan.k_blocks = static_cast<int32_t>(params.in_features / kHeadBlockK);
  const int64_t stage = int64_t{kHeadRows + plan.token_tile} * kHeadBlockK * 2;
  plan.stages = static_cast<int32_t>(kRingBytes / stage);
  plan.shared_bytes = kAlignment + plan.stages * (stage + kBarrierBytes);
  return plan;
}

}  // namespace tokline
