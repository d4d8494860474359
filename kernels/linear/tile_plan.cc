// Plans Linear's kTile: of all tiles and splits, the one whose modelled time is smallest.
#include "kernels/linear/tile_plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/common/rounding.h"
#include "kernels/linear/linear.h"

namespace tokline {
namespace {

// The constants of two models of a plan's time, in microseconds and bytes per microsecond on an
// H200. They only rank plans. This one was fitted to 791 plans of 34 weights at 64 and 128 tokens:
// on average the plan that it chooses takes 1.007 times as long as the best one, at worst 1.08
// times. Rates: of the memory and of the L2 for all SMs together, at which a block takes in weights
// and an SM reads its shared memory, and at which a block stores or merges its sums.
constexpr double kMemoryRate = 3.4e6, kL2Rate = 18e6, kBlockRate = 0.11e6, kSharedRate = 0.2e6;
constexpr double kStoreRate = 85e3, kMergeRate = 25e3;
constexpr double kLaunchUs = 1.94, kWaveUs = 1.2;
// Plans of fewer blocks were not timed; they are taken if the model sees a clear gain.
constexpr int32_t kTimedBlocks = 30;
constexpr double kNotTimedUs = 1;

// Blocks that run at once, one per SM. Clusters of four leave SMs idle, since each lies in one GPC.
int64_t BlocksAtOnce(int32_t splits, const DeviceFacts& device) {
  return splits <= 2 ? device.sm_count : int64_t{device.sm_count} * 29 / 33;
}

// Of times that overlap only partly.
double Overlapped(std::initializer_list<double> times) {
  double cubes = 0;
  for (const double time : times) cubes += time * time * time;
  return std::cbrt(cubes);
}

// Adds to `us` the time of each wave, which `wave_us` says for a number of blocks.
template <typename WaveUs>
double WithWaves(double us, const TilePlan& plan, const DeviceFacts& device,
                 const WaveUs& wave_us) {
  const int64_t at_once = BlocksAtOnce(plan.splits, device);
  for (int64_t left = plan.Grid(); left > 0; left -= at_once) {
    us += wave_us(static_cast<double>(std::min(left, at_once)));
  }
  return us;
}

// With few tokens weights alone count, and how they are divided. Fitted to 552 plans of 46 weights
// at 8 tokens and to 70 plans in decoders of 5 models (this kernel's README).
double MicrosecondsOfFewTokens(const TilePlan& plan, const DeviceFacts& device) {
  // Rates of all SMs and of a block among others. A block alone reaches kBlockRate.
  constexpr double kMemory = 4.4e6, kBlock = 55e3;
  constexpr double kWave = 1.2, kStart = 0.03, kStage = 0.1;  // per wave, block and stage
  constexpr double kMerge[] = {0, 0.3, 0.15};                 // of 1, 2 and 4 splits
  const int64_t stages = DivideUp(plan.k_blocks, plan.splits);
  const auto weight_bytes = static_cast<double>(2 * kTileBlockK * stages * plan.rows);
  return WithWaves(kMerge[plan.splits / 2], plan, device, [&](double blocks) {
    return kWave + kStart * blocks +
           Overlapped({blocks * weight_bytes / kMemory, weight_bytes / kBlock,
                       static_cast<double>(stages) * kStage});
  });
}

double Microseconds(const TilePlan& plan, const LinearParams& params, const DeviceFacts& device) {
  if (params.num_tokens <= kFewTileTokens) return MicrosecondsOfFewTokens(plan, device);
  const double share = SizeOf(params.dtype) * kTileBlockK *
                       static_cast<double>(DivideUp(plan.k_blocks, plan.splits));
  const double weight_bytes = share * plan.rows, bytes = weight_bytes + share * plan.token_tile;
  // Both warpgroups read all tokens, or all weight rows.
  const double read_bytes = bytes + (plan.token_tile == 64 ? share * 64 : weight_bytes);
  const double sums_bytes = 4.0 * plan.token_tile * plan.rows;
  const double launch_us = kLaunchUs - kWaveUs + (plan.Grid() < kTimedBlocks ? kNotTimedUs : 0);
  const double us = WithWaves(launch_us, plan, device, [&](double blocks) {
    return kWaveUs + Overlapped({blocks * weight_bytes / plan.token_tiles / kMemoryRate,
                                 blocks * bytes / kL2Rate, weight_bytes / kBlockRate,
                                 read_bytes / kSharedRate});
  });
  if (plan.splits == 1) return us + sums_bytes / kStoreRate;
  // For clusters of two and of four. They were 0.75 and 0.97 when barriers released writes.
  constexpr double kBarrierUs[] = {0.35, 0.5};
  return us + kBarrierUs[plan.splits / 4] +
         sums_bytes * (plan.splits - 1) / plan.splits / kMergeRate;
}

}  // namespace

TilePlan TileOf(const LinearParams& params, int32_t token_tile, int32_t columns, int32_t splits) {
  constexpr int64_t kRingBytes = int64_t{196} << 10, kBarrierBytes = 16, kAlignment = 1024;
  const int64_t weight_rows = params.gated_silu ? 2 * params.out_features : params.out_features;
  TilePlan plan;
  plan.token_tile = token_tile;
  const int64_t token_tiles = DivideUp(params.num_tokens, int64_t{token_tile});
  plan.token_tiles = static_cast<int32_t>(std::max<int64_t>(1, token_tiles));  // also of no tokens
  plan.tokens = static_cast<int32_t>(DivideUp(params.num_tokens, int64_t{plan.token_tiles}));
  plan.rows = plan.token_tile == 64 ? 2 * columns : columns;
  plan.splits = splits;
  plan.tiles = static_cast<int32_t>(DivideUp(weight_rows, int64_t{plan.rows}));
  plan.k_blocks = static_cast<int32_t>(params.in_features / kTileBlockK);
  // Shared memory is swizzled in groups of eight rows. The last rows that are multiplied may be
  // weights, but none of the next stage, which may be on its way.
  plan.x_rows =
      static_cast<int32_t>(std::max<int64_t>(RoundUp(plan.tokens, 8), plan.token_tile - plan.rows));
  const int64_t stage = int64_t{plan.rows + plan.x_rows} * kTileBlockK * 2;
  // A block holds the sums of all splits for the tokens that it finishes, and its own sums for the
  // others.
  const int64_t rows_of_sums = plan.token_tile + (splits - 1) * DivideUp(plan.tokens, splits);
  const int64_t sums = rows_of_sums * (plan.rows + kTileSumsPadding) * 4;
  plan.stages =
      static_cast<int32_t>(std::min<int64_t>(kRingBytes / stage, DivideUp(plan.k_blocks, splits)));
  plan.data_bytes = static_cast<int32_t>(std::max(plan.stages * stage, sums));
  plan.shared_bytes = kAlignment + plan.data_bytes + (plan.stages + 1) * kBarrierBytes;
  return plan;
}

TilePlan PlanTile(const LinearParams& params, const DeviceFacts& device) {
  constexpr int32_t kMinBlocksOfK = 3;
  TilePlan best;
  double best_us = INFINITY;
  const auto consider = [&](int32_t token_tile, int32_t columns) {
    for (const int32_t splits : {1, 2, 4}) {
      const TilePlan plan = TileOf(params, token_tile, columns, splits);
      if (splits > 1 && plan.k_blocks < splits * kMinBlocksOfK) continue;
      const double us = Microseconds(plan, params, device);
      if (us >= best_us) continue;
      best = plan;
      best_us = us;
    }
  };
  if (params.num_tokens <= 64 || params.num_tokens > kLargestTokenTile) {
    for (const int32_t columns : kTileColumns64) consider(64, columns);
  }
  if (params.num_tokens > 64) {
    for (const int32_t columns : kTileColumns128) consider(kLargestTokenTile, columns);
  }
  return best;
}

}  // namespace tokline
