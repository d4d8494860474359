// Chooses and launches the paged_prefill kernel.
#include "kernels/device/current_device.h"
#include "kernels/device/launch.cuh"
#include "kernels/paged_prefill/hopper_device.cuh"
#include "kernels/paged_prefill/paged_prefill_policy.h"
#include "kernels/paged_prefill/portable_device.cuh"

namespace tokline {
namespace {

struct KernelChoice {
  void (*kernel)(PagedPrefillParams) = nullptr;
  unsigned threads = 0;
  size_t shared_bytes = 0;
};

template <DType kDType, int kHeadDim>
KernelChoice ChooseForType(PagedPrefillVariant variant) {
  switch (variant) {
    case PagedPrefillVariant::kAuto:
      break;  // resolved by Launch
    case PagedPrefillVariant::kPortable: {
      using Policy = PortablePrefillPolicy<kDType, kHeadDim>;
      return {PortablePrefillKernel<Policy>, Policy::kThreads, Policy::kSharedBytes};
    }
    case PagedPrefillVariant::kHopper: {
      using Policy = HopperPrefillPolicy<kDType, kHeadDim>;
      return {HopperPrefillKernel<Policy>, Policy::kThreads, Policy::kSharedBytes};
    }
  }
  return {};
}

KernelChoice ChooseKernel(DType dtype, int32_t head_dim, PagedPrefillVariant variant) {
  if (dtype == DType::kBf16 && head_dim == 64) return ChooseForType<DType::kBf16, 64>(variant);
  if (dtype == DType::kBf16 && head_dim == 128) return ChooseForType<DType::kBf16, 128>(variant);
  if (dtype == DType::kF16 && head_dim == 64) return ChooseForType<DType::kF16, 64>(variant);
  if (dtype == DType::kF16 && head_dim == 128) return ChooseForType<DType::kF16, 128>(variant);
  throw InvalidArgument(StrCat("dtype is ", Name(dtype), " and head_dim ", head_dim,
                               "; CUDA supports bf16 and f16, 64 and 128"));
}

// Only the code made for sm_90a is bound to all of its threads; asked on a Hopper device alone.
bool BuiltForSm90a() {
  static const bool built = [] {
    using Policy = HopperPrefillPolicy<DType::kBf16, 128>;
    cudaFuncAttributes attributes{};
    TOKLINE_CUDA(cudaFuncGetAttributes(&attributes,
                                       reinterpret_cast<const void*>(HopperPrefillKernel<Policy>)));
    return attributes.maxThreadsPerBlock >= Policy::kThreads;
  }();
  return built;
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
  const DeviceFacts device = CurrentDeviceFacts();
  const bool has_hopper = device.compute_major == 9 && BuiltForSm90a();
  Require(params.variant != PagedPrefillVariant::kHopper || has_hopper,
          "variant is kHopper; it needs compute capability 9.x, here ", device.compute_major, ".",
          device.compute_minor, ", and a build for sm_90a");
  const PagedPrefillVariant variant = params.variant == PagedPrefillVariant::kAuto
                                          ? ChoosePagedPrefillVariant(device, has_hopper)
                                          : params.variant;
  const KernelChoice choice = ChooseKernel(params.dtype, params.layout.head_dim, variant);
  LaunchKernel(choice.kernel,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(choice.threads),
                .shared_bytes = choice.shared_bytes},
               options, params);
}

}  // namespace tokline
