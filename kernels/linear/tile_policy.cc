// Plans Linear's kTile: of all tiles and splits, the one whose modelled time is smallest.
#include "kernels/linear/tile_policy.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/rounding.h"
#include "kernels/linear/linear.h"

namespace tokline {
namespace {

// The model's constants, fitted to 1,300 plans of 33 weights on an H200. They only rank plans: the
// plan that they choose takes 1.03 times what the best one takes on average, 1.17 times at worst.
// Bytes per microsecond: what the memory gives all SMs together, what the L2 does, what an SM takes
// from it, and what a merge moves.
constexpr double kMemoryRate = 3.48e6, kL2Rate = 9e6, kSmRate = 0.1e6, kMergeRate = 8.15e3;
constexpr double kStoreRate = 86e3;
constexpr double kLaunchUs = 1.69, kWaveUs = 0.38;

// Blocks that run at once, one per SM. Clusters of four leave SMs idle, since each lies in one GPC.
int64_t BlocksAtOnce(int32_t splits, const DeviceFacts& device) {
  return splits <= 2 ? device.sm_count : int64_t{device.sm_count} * 9 / 11;
}

double Microseconds(const TilePlan& plan, const LinearParams& params, const DeviceFacts& device) {
  const double share = SizeOf(params.dtype) * kTileBlockK *
                       static_cast<double>(DivideUp(plan.k_blocks, plan.splits));
  const double weight_bytes = share * plan.rows, bytes = weight_bytes + share * plan.token_tile;
  const double sums_bytes = 4.0 * plan.token_tile * plan.rows;
  const int64_t at_once = BlocksAtOnce(plan.splits, device);
  double us = kLaunchUs - kWaveUs;
  for (int64_t left = plan.Grid(); left > 0; left -= at_once) {
    const auto blocks = static_cast<double>(std::min(left, at_once));
    us += kWaveUs + std::max({bytes / kSmRate, blocks * weight_bytes / kMemoryRate,
                              blocks * bytes / kL2Rate});
  }
  if (plan.splits == 1) return us + sums_bytes / kStoreRate;
  constexpr double kBarrierUs[] = {0.9, 0.18};  // of clusters of two and of four
  return us + kBarrierUs[plan.splits / 4] +
         sums_bytes * (plan.splits - 1) / plan.splits / kMergeRate;
}

}  // namespace

TilePlan TileOf(const LinearParams& params, int32_t columns, int32_t splits) {
  constexpr int64_t kRingBytes = int64_t{196} << 10, kBarrierBytes = 16, kAlignment = 1024;
  const int64_t weight_rows = params.gated_silu ? 2 * params.out_features : params.out_features;
  TilePlan plan;
  plan.token_tile = params.num_tokens <= 64 ? 64 : 128;
  plan.rows = plan.token_tile == 64 ? 2 * columns : columns;
  plan.splits = splits;
  plan.tiles = static_cast<int32_t>(DivideUp(weight_rows, int64_t{plan.rows}));
  plan.k_blocks = static_cast<int32_t>(params.in_features / kTileBlockK);
  const int64_t stage = int64_t{plan.rows + plan.token_tile} * kTileBlockK * 2;
  const int64_t sums = int64_t{plan.token_tile} * (plan.rows + kTileSumsPadding) * 4;
  plan.stages =
      static_cast<int32_t>(std::min<int64_t>(kRingBytes / stage, DivideUp(plan.k_blocks, splits)));
  plan.shared_bytes =
      kAlignment + std::max(plan.stages * stage, sums) + plan.stages * kBarrierBytes;
  return plan;
}

TilePlan PlanTile(const LinearParams& params, const DeviceFacts& device) {
  constexpr int32_t kMinBlocksOfK = 3;
  TilePlan best;
  double best_us = INFINITY;
  const auto consider = [&](int32_t columns) {
    for (const int32_t splits : {1, 2, 4}) {
      const TilePlan plan = TileOf(params, columns, splits);
      if (splits > 1 && plan.k_blocks < splits * kMinBlocksOfK) continue;
      const double us = Microseconds(plan, params, device);
      if (us >= best_us) continue;
      best = plan;
      best_us = us;
    }
  };
  if (params.num_tokens <= 64) {
    for (const int32_t columns : kTileColumns64) consider(columns);
  } else {
    for (const int32_t columns : kTileColumns128) consider(columns);
  }
  return best;
}

}  // namespace tokline
