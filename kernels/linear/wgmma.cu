// Makes the tensor maps of Linear's kernel for sm_90a and launches it for the tokens' tile.
#include "kernels/linear/wgmma.h"

#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/linear/wgmma_device.cuh"

namespace tokline {
namespace {

// Boxes of a stage: the rows of a tile or, if gated, alternately 8 gate rows and 8 up rows.
CUtensorMap WeightMap(const LinearParams& params, uint32_t panels) {
  const auto k = static_cast<uint64_t>(params.in_features);
  const auto rows = static_cast<uint64_t>(params.out_features);
  BoxedTensor<5> tensor{.dtype = params.dtype,
                        .data = params.weight,
                        .sizes = {64, rows, 1, 1, k / 64},
                        .strides = {2 * k, 2 * k * rows, 2 * k * rows, 128},
                        .box = {64, kWgmmaRows, 1, 1, panels}};
  if (params.gated_silu) {
    tensor.sizes = {64, 8, 2, rows / 8, k / 64};
    tensor.strides[2] = 2 * k * 8;
    tensor.box = {64, 8, 2, kWgmmaRows / 16, panels};
  }
  return MakeTensorMap(tensor);
}

// Whether boxes of x end at the last token, because a box that reaches past it is slow. With up to
// 16 tokens this costs registers, which is more than it gains (README.md).
bool EndsAtLastToken(const LinearParams& params, const WgmmaPlan& plan) {
  return plan.token_tile > kWgmmaRegisterTokens && params.num_tokens < plan.token_tile;
}

// Boxes of all panels of a stage, with zeros beyond the last token, or boxes of one panel of
// exactly the launch's tokens, which is placed where it would lie among all panels.
CUtensorMap ActivationMap(const LinearParams& params, const WgmmaPlan& plan, uint32_t panels) {
  const bool ends = EndsAtLastToken(params, plan);
  return MakeTensorMap<3>(
      {.dtype = params.dtype,
       .data = params.x,
       .sizes = {64, static_cast<uint64_t>(params.num_tokens),
                 static_cast<uint64_t>(params.in_features) / 64},
       .strides = {2 * static_cast<uint64_t>(params.num_tokens == 1 ? params.in_features
                                                                    : params.x_stride),
                   128},
       .box = {64, static_cast<uint32_t>(ends ? params.num_tokens : plan.token_tile),
               ends ? 1 : panels}});
}

}  // namespace

void LaunchWgmma(const LinearParams& params, const WgmmaPlan& plan, const LaunchOptions& options) {
  const auto panels = static_cast<uint32_t>(kWgmmaBlockK / 64);
  const WgmmaArgs args{.params = params,
                       .plan = plan,
                       .weight = WeightMap(params, panels),
                       .x = ActivationMap(params, plan, panels),
                       .send = params.send ? *params.send : PeerBuffers{}};
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.grid)),
      .block = dim3(static_cast<unsigned>(kWgmmaThreads + 32 * WgmmaIdleWarps(plan.token_tile))),
      .shared_bytes = static_cast<size_t>(plan.shared_bytes),
      .cluster = static_cast<unsigned>(plan.cluster)};
  // launch<kTokens, kFewer>(); kTileTokens are token tiles.
  const auto dispatch = [&]<int... kTileTokens>(const auto& launch) {
    Dispatch<kTileTokens...>("token_tile", plan.token_tile, [&]<int kTokens>() {
      if constexpr (kTokens > kWgmmaRegisterTokens) {
        if (EndsAtLastToken(params, plan)) return launch.template operator()<kTokens, true>();
      }
      launch.template operator()<kTokens, false>();
    });
  };
  DispatchDType(params.dtype, [&]<DType kDType>() {
    using T = typename DeviceType<kDType>::Type;
    if (params.append != nullptr) {
      const WgmmaAppendArgs append{args, *params.append};
      DispatchHeadDim(params.append->layout.head_dim, [&]<int kHeadDim>() {
        dispatch.template operator()<8, 16, 32>([&]<int kTokens, bool kFewer>() {
          LaunchKernel(&WgmmaLinearKernel<WgmmaPolicy<T, kTokens, kFewer, kHeadDim>>, shape,
                       options, append);
        });
      });
      return;
    }
    dispatch.template operator()<8, 16, 32, 64>([&]<int kTokens, bool kFewer>() {
      const auto kernel = params.send != nullptr
                              ? &WgmmaLinearKernel<WgmmaPolicy<T, kTokens, kFewer, 0, true>>
                              : &WgmmaLinearKernel<WgmmaPolicy<T, kTokens, kFewer>>;
      LaunchKernel(kernel, shape, options, args);
    });
  });
}

}  // namespace tokline
