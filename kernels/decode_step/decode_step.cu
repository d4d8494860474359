// Launches decode_step: one block per SM, all resident.
#include "kernels/decode_step/decode_step_device.cuh"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"

namespace tokline {
namespace {

// A box is a tile of 16 tokens of one head, in panels of 64 elements. The rows of all heads, pages
// and layers lie one after another.
CUtensorMap KvMap(const DecodeStepParams& params) {
  const auto head_dim = static_cast<uint64_t>(params.layout.head_dim);
  const auto rows = static_cast<uint64_t>(params.model.num_layers * params.layout.NumElements() /
                                          params.layout.head_dim);
  Require(rows <= INT32_MAX, "the KV cache has ", rows, " rows of heads; decode_step takes ",
          INT32_MAX);
  return MakeTensorMap<3>(
      {.dtype = params.model.dtype,
       .data = params.kv,
       .sizes = {64, rows, head_dim / 64},
       .strides = {2 * head_dim, 128},
       .box = {64, kDecodeStepTileTokens, static_cast<uint32_t>(head_dim / 64)}});
}

}  // namespace

void Launch(const DecodeStepParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.num_tokens == 0) return;
  const DeviceFacts& device = CurrentDeviceFacts();
  ValidateLaunch(params, device);
  const decode_step::Arguments args{
      .params = params,
      .geometry = DecodeStepGeometryOf(params.model, params.layout, params.num_tokens, device),
      .kv = KvMap(params)};
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(args.geometry.blocks)),
                          .block = dim3(decode_step::kThreads),
                          .shared_bytes = static_cast<size_t>(args.geometry.shared_bytes),
                          .cooperative = true};
  const int rows = params.num_tokens <= 2 ? params.num_tokens : kMaxDecodeStepTokens;
  DispatchDType(params.model.dtype, [&]<DType kDType>() {
    DispatchHeadDim(params.layout.head_dim, [&]<int kHeadDim>() {
      Dispatch<1, 2, kMaxDecodeStepTokens>("rows", rows, [&]<int kRows>() {
        LaunchKernel(&decode_step::DecodeStepKernel<decode_step::Policy<kDType, kHeadDim, kRows>>,
                     shape, options, args);
      });
    });
  });
}

}  // namespace tokline
