// Chooses and launches the GELU kernel.
#include "kernels/gelu/gelu.h"

#include <limits>

#include "kernels/device/launch.cuh"
#include "kernels/gelu/gelu_device.cuh"

namespace tokline {
namespace {

template <typename T>
void LaunchAs(const GeluParams& params, const LaunchOptions& options) {
  const int64_t vectors = params.intermediate_size / 8;
  const int64_t blocks_per_row = (vectors + kGeluThreads - 1) / kGeluThreads;
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  Require(params.num_tokens <= kMaxBlocks / blocks_per_row, params.num_tokens, " rows of ",
          blocks_per_row, " blocks exceed the grid's ", kMaxBlocks);
  LaunchKernel(GeluKernel<T>,
               {.grid = dim3(static_cast<unsigned>(params.num_tokens * blocks_per_row)),
                .block = dim3(kGeluThreads)},
               options, static_cast<const T*>(params.x), params.x_stride,
               static_cast<T*>(params.out), params.out_stride, vectors,
               static_cast<int32_t>(blocks_per_row));
}

}  // namespace

void Launch(const GeluParams& params, const LaunchOptions& options) {
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
  Require(false, "dtype is ", Name(params.dtype), "; gelu on CUDA supports bf16 and f16");
}

}  // namespace tokline
