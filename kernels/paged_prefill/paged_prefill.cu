// Selects and launches the paged_prefill kernel variant.
#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/device/current_device.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/paged_prefill/hopper_device.cuh"
#include "kernels/paged_prefill/paged_prefill_plan.h"
#include "kernels/paged_prefill/part_states_device.cuh"
#include "kernels/paged_prefill/portable_device.cuh"

namespace tokline {
namespace {

template <DType kDType, int kHeadDim, bool kCut>
void LaunchPortable(const PagedPrefillParams& params, unsigned blocks,
                    const LaunchOptions& options) {
  using Policy = PortablePrefillPolicy<kDType, kHeadDim, kCut>;
  LaunchKernel(
      PortablePrefillKernel<Policy>,
      {.grid = dim3(blocks), .block = dim3(Policy::kThreads), .shared_bytes = Policy::kSharedBytes},
      options, params);
}

template <DType kDType, int kHeadDim, bool kCut>
void LaunchHopper(const PagedPrefillParams& params, unsigned blocks, const LaunchOptions& options) {
  using Policy = HopperPrefillPolicy<kDType, kHeadDim, kCut>;
  const PagedKvLayout& layout = params.layout;
  const HopperPrefillArgs with_maps{
      .prefill = params,
      .q = QueryMap(kDType, params.q, kHeadDim, params.num_q_heads, params.total_tokens,
                    params.q_stride, params.num_q_heads / layout.num_kv_heads, params.tile_tokens),
      .kv = PagedKvMap(kDType, params.kv, layout, layout.BoxTokens(Policy::kKvTokens)),
      .few = PagedKvMap(kDType, params.kv, layout, Policy::kFewTokens)};
  LaunchKernel(HopperPrefillKernel<Policy>,
               {.grid = dim3(blocks),
                .block = dim3(Policy::kThreads),
                .shared_bytes = HopperShared<Policy>::kBytes},
               options, with_maps);
}

template <DType kDType, int kHeadDim>
void LaunchMerge(const PagedPrefillParams& params, const LaunchOptions& options) {
  using T = typename DeviceType<kDType>::Type;
  LaunchKernel(PrefillMergeKernel<T, kHeadDim>,
               {.grid = dim3(static_cast<unsigned>(params.num_parts), kPrefillMergeBlocks),
                .block = dim3(kPrefillMergeWarps * 32)},
               options, params);
}

}  // namespace

void Launch(const PagedPrefillParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.total_tokens == 0) return;
  const int32_t tile_tokens = PagedPrefillTileTokens(params.num_q_heads, params.layout);
  Require(params.tile_tokens >= 1 && params.tile_tokens <= tile_tokens, "tile_tokens is ",
          params.tile_tokens, "; a plan for ", params.num_q_heads, " query heads over ",
          params.layout.num_kv_heads, " KV heads has 1 to ", tile_tokens);
  Require(params.num_tiles >= 1 && params.tiles != nullptr &&
              IsAligned(params.tiles, alignof(PagedPrefillTile)),
          "num_tiles is ", params.num_tiles, " with tiles at ", params.tiles,
          "; there must be at least one, 16 B aligned and not null");
  Require(params.num_blocks >= 1 && params.num_blocks <= params.num_tiles, "num_blocks is ",
          params.num_blocks, " with ", params.num_tiles, " tiles; it must be 1 to that");
  const DeviceFacts& device = CurrentDeviceFacts();
  Require(params.variant != PagedPrefillVariant::kHopper || device.HasHopperCode(),
          "variant is kHopper; it needs compute capability 9.x, here ", device.compute_major, ".",
          device.compute_minor, ", and a build for sm_90a");
  const PagedPrefillVariant variant = params.variant == PagedPrefillVariant::kAuto
                                          ? ChoosePagedPrefillVariant(device)
                                          : params.variant;
  // The Hopper variant is persistent: its blocks move on to the next tile themselves.
  const int32_t grid =
      variant == PagedPrefillVariant::kHopper ? params.num_blocks : params.num_tiles;
  DispatchDType(params.dtype, [&]<DType kDType>() {
    DispatchHeadDim(params.layout.head_dim, [&]<int kHeadDim>() {
      Dispatch<false, true>("parts", params.num_parts > 0, [&]<bool kCut>() {
        const auto launch = variant == PagedPrefillVariant::kHopper
                                ? LaunchHopper<kDType, kHeadDim, kCut>
                                : LaunchPortable<kDType, kHeadDim, kCut>;
        launch(params, static_cast<unsigned>(grid), options);
      });
      if (params.num_parts == 0) return;
      // It waits for the first kernel, so it may always be launched before that one ends.
      LaunchMerge<kDType, kHeadDim>(params, {.stream = options.stream, .dependent = true});
    });
  });
}

}  // namespace tokline
