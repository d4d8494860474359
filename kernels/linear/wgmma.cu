// Makes the tensor maps of Linear's kernel for sm_90a and launches it for the tokens' tile.
#include "kernels/linear/wgmma.h"

#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/linear/wgmma_device.cuh"

namespace tokline {
namespace {

// Boxes of a stage: the rows of a tile, and if gated 8 of gate and 8 of up in turn.
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

// Boxes of the tokens that there are, since one that reaches past the last token is slow: all
// panels of a stage if they fill a tile, otherwise one panel, which lies where it would lie in a
// full one.
CUtensorMap ActivationMap(const LinearParams& params, const WgmmaPlan& plan, uint32_t panels) {
  return MakeTensorMap<3>(
      {.dtype = params.dtype,
       .data = params.x,
       .sizes = {64, static_cast<uint64_t>(params.num_tokens),
                 static_cast<uint64_t>(params.in_features) / 64},
       .strides = {2 * static_cast<uint64_t>(params.num_tokens == 1 ? params.in_features
                                                                    : params.x_stride),
                   128},
       .box = {64, static_cast<uint32_t>(params.num_tokens),
               params.num_tokens == plan.token_tile ? panels : 1}});
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
  DispatchDType(params.dtype, [&]<DType kDType>() {
    using T = typename DeviceType<kDType>::Type;
    if (params.append != nullptr) {
      const WgmmaAppendArgs append{args, *params.append};
      DispatchHeadDim(params.append->layout.head_dim, [&]<int kHeadDim>() {
        Dispatch<8, 16, 32, 64>("token_tile", plan.token_tile, [&]<int kTokens>() {
          LaunchKernel(&WgmmaLinearKernel<WgmmaPolicy<T, kTokens, kHeadDim>>, shape, options,
                       append);
        });
      });
      return;
    }
    Dispatch<8, 16, 32, 64>("token_tile", plan.token_tile, [&]<int kTokens>() {
      LaunchKernel(&WgmmaLinearKernel<WgmmaPolicy<T, kTokens>>, shape, options, args);
    });
  });
}

}  // namespace tokline
