// Chooses and launches the activation kernel.
#include "kernels/activation/activation.h"

#include <limits>

#include "kernels/activation/activation_device.cuh"
#include "kernels/common/rounding.h"
#include "kernels/device/launch.cuh"

namespace tokline {
namespace {

template <typename T>
void LaunchAs(const ActivationParams& params, const LaunchOptions& options) {
  const int64_t vectors = params.intermediate_size / 8;
  const int64_t blocks_per_row = DivideUp(vectors, kActivationThreads);
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  Require(params.num_tokens <= kMaxBlocks / blocks_per_row, params.num_tokens, " rows of ",
          blocks_per_row, " blocks exceed the grid's ", kMaxBlocks);
  LaunchKernel(
      params.kind == ActivationKind::kGatedSilu ? &ActivationKernel<ActivationKind::kGatedSilu, T>
                                                : &ActivationKernel<ActivationKind::kGeluTanh, T>,
      {.grid = dim3(static_cast<unsigned>(params.num_tokens * blocks_per_row)),
       .block = dim3(kActivationThreads)},
      options, static_cast<const T*>(params.x), params.x_stride, static_cast<T*>(params.out),
      params.out_stride, vectors, static_cast<int32_t>(blocks_per_row));
}

}  // namespace

void Launch(const ActivationParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.num_tokens == 0) return;
  switch (params.dtype) {
    case DType::kBf16:
      return LaunchAs<__nv_bfloat16>(params, options);
    case DType::kF16:
      return LaunchAs<__half>(params, options);
    case DType::kF32:
      break;
  }
  Require(false, "dtype is ", Name(params.dtype), "; activation on CUDA supports bf16 and f16");
}

}  // namespace tokline
