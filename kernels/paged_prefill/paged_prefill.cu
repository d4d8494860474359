// Chooses and launches the paged_prefill kernel.
#include "kernels/device/launch.cuh"
#include "kernels/paged_prefill/paged_prefill_policy.h"
#include "kernels/paged_prefill/portable_device.cuh"

namespace tokline {
namespace {

template <DType kDType, int kHeadDim>
void LaunchPortable(const PagedPrefillParams& params, unsigned blocks,
                    const LaunchOptions& options) {
  using Policy = PortablePrefillPolicy<kDType, kHeadDim>;
  LaunchKernel(
      PortablePrefillKernel<Policy>,
      {.grid = dim3(blocks), .block = dim3(Policy::kThreads), .shared_bytes = Policy::kSharedBytes},
      options, params);
}

template <DType kDType>
void Dispatch(const PagedPrefillParams& params, unsigned blocks, const LaunchOptions& options) {
  switch (params.layout.head_dim) {
    case 64:
      return LaunchPortable<kDType, 64>(params, blocks, options);
    case 128:
      return LaunchPortable<kDType, 128>(params, blocks, options);
  }
}

}  // namespace

void Launch(const PagedPrefillParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.total_tokens == 0) return;
  const int32_t tile_tokens = PagedPrefillTileTokens(params.num_q_heads, params.layout);
  Require(params.tile_tokens == tile_tokens, "tile_tokens is ", params.tile_tokens,
          "; the plan for ", params.num_q_heads, " query heads over ", params.layout.num_kv_heads,
          " KV heads has ", tile_tokens);
  const int64_t blocks = int64_t{params.num_tiles} * params.layout.num_kv_heads;
  Require(params.num_tiles >= 1 && params.tiles != nullptr && blocks <= INT32_MAX, "num_tiles is ",
          params.num_tiles, " with tiles at ", params.tiles, " and ", params.layout.num_kv_heads,
          " KV heads; tiles must not be null and their product must be 1 to ", INT32_MAX);
  const auto grid = static_cast<unsigned>(blocks);
  switch (params.dtype) {
    case DType::kBf16:
      return Dispatch<DType::kBf16>(params, grid, options);
    case DType::kF16:
      return Dispatch<DType::kF16>(params, grid, options);
    case DType::kF32:
      break;
  }
  throw InvalidArgument(StrCat("dtype is ", Name(params.dtype), "; CUDA supports bf16 and f16"));
}

}  // namespace tokline
