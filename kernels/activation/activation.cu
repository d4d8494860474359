// Selects and launches the activation kernel.
#include "kernels/activation/activation.h"

#include <limits>

#include "kernels/activation/activation_device.cuh"
#include "kernels/common/rounding.h"
#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"

namespace tokline {

void Launch(const ActivationParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.num_tokens == 0) return;
  const int64_t vectors = params.intermediate_size / 8;
  const int64_t blocks_per_row = DivideUp(vectors, kActivationThreads);
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  Require(params.num_tokens <= kMaxBlocks / blocks_per_row, params.num_tokens, " rows of ",
          blocks_per_row, " blocks exceed the grid's ", kMaxBlocks);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_tokens * blocks_per_row)),
                          .block = dim3(kActivationThreads),
                          .bytes = CostOf(params).Bytes()};
  DispatchDType(params.dtype, [&]<DType kDType>() {
    using T = typename DeviceType<kDType>::Type;
    Dispatch<ActivationKind::kGatedSilu, ActivationKind::kGeluTanh>(
        "kind", params.kind, [&]<ActivationKind kKind>() {
          LaunchKernel(ActivationKernel<kKind, T>, shape, options, static_cast<const T*>(params.x),
                       params.x_stride, static_cast<T*>(params.out), params.out_stride, vectors,
                       static_cast<int32_t>(blocks_per_row));
        });
  });
}

}  // namespace tokline
