// Makes the tensor maps of Linear's kTile and launches it for the plan's tile.
#include "kernels/linear/tile.h"

#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/linear/tile_device.cuh"

namespace tokline {
namespace {

// Boxes of a tile or, if gated, of the gate or up rows of half a warpgroup, with zeros beyond the
// last row.
CUtensorMap WeightMap(const LinearParams& params, const TilePlan& plan) {
  const int64_t k = params.in_features, rows = params.out_features * (params.gated_silu ? 2 : 1);
  return PanelMap(params.dtype, params.weight, rows, k, k,
                  params.gated_silu ? plan.Columns() / 2 : plan.rows);
}

// Boxes of exactly the tokens of the launch: a box that reaches past the last token is slow.
CUtensorMap ActivationMap(const LinearParams& params, const TilePlan& plan) {
  const int64_t k = params.in_features, tokens = params.num_tokens;
  return PanelMap(params.dtype, params.x, tokens, k, tokens == 1 ? k : params.x_stride,
                  plan.tokens);
}

}  // namespace

void LaunchTile(const LinearParams& params, const TilePlan& plan, const LaunchOptions& options) {
  const TileArgs args{.params = params,
                      .plan = plan,
                      .weight = WeightMap(params, plan),
                      .x = ActivationMap(params, plan),
                      .send = params.send ? *params.send : PeerBuffers{}};
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.Grid())),
                          .block = dim3(kTileThreads),
                          .shared_bytes = static_cast<size_t>(plan.shared_bytes),
                          .cluster = static_cast<unsigned>(plan.splits)};
  DispatchDType(params.dtype, [&]<DType kDType>() {
    using T = typename DeviceType<kDType>::Type;
    const auto launch = [&]<int kTokens, int kColumns>() {
      if (params.send != nullptr) {
        LaunchKernel(&TileLinearKernel<TilePolicy<T, kTokens, kColumns, true>>, shape, options,
                     args);
      } else {
        LaunchKernel(&TileLinearKernel<TilePolicy<T, kTokens, kColumns, false>>, shape, options,
                     args);
      }
    };
    if (plan.token_tile == 64) {
      Dispatch<32, 48, 64, 80>("columns", plan.Columns(),
                               [&]<int kColumns>() { launch.template operator()<64, kColumns>(); });
    } else {
      Dispatch<32, 48, 64, 80, 96, 128, 160>("columns", plan.Columns(), [&]<int kColumns>() {
        launch.template operator()<128, kColumns>();
      });
    }
  });
}

}  // namespace tokline
