// Launches the embedding kernels.
#include "kernels/embedding/embedding.h"

#include <limits>

#include "kernels/device/dispatch.h"
#include "kernels/device/launch.cuh"
#include "kernels/embedding/embedding_device.cuh"

namespace tokline {
namespace {

void LaunchSum(const EmbeddingParams& params, const LaunchShape& shape, int64_t vectors,
               const LaunchOptions& options) {
  const EmbeddingSumArgs args{.token_ids = params.token_ids,
                              .positions = params.positions,
                              .table = static_cast<const uint4*>(params.table),
                              .position_table = static_cast<const uint4*>(params.position_table),
                              .out = static_cast<uint4*>(params.out),
                              .first_id = params.first_id,
                              .vocab_size = params.vocab_size,
                              .num_positions = params.num_positions,
                              .vectors = vectors};
  DispatchDType(params.dtype, [&]<DType kDType>() {
    LaunchKernel(EmbeddingSumKernel<typename DeviceType<kDType>::Type>, shape, options, args);
  });
}

}  // namespace

void Launch(const EmbeddingParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.num_tokens == 0) return;
  Require(params.num_tokens <= std::numeric_limits<int32_t>::max(), "num_tokens is ",
          params.num_tokens, "; embedding on CUDA takes at most ",
          std::numeric_limits<int32_t>::max());
  // Rows are copied bit by bit, so the element type only determines their length.
  const int64_t vectors = params.hidden_size * SizeOf(params.dtype) / 16;
  LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_tokens)),
                    .block = dim3(kEmbeddingThreads),
                    .bytes = CostOf(params).Bytes()};
  if (params.position_table != nullptr) return LaunchSum(params, shape, vectors, options);
  const EmbeddingArgs args{.token_ids = params.token_ids,
                           .table = static_cast<const uint4*>(params.table),
                           .out = static_cast<uint4*>(params.out),
                           .num_tokens = params.num_tokens,
                           .first_id = params.first_id,
                           .vocab_size = params.vocab_size,
                           .vectors = vectors};
  // A row of one vector per thread leaves room for another row's loads.
  if (shape.bytes < kLongLaunchBytes || vectors > kEmbeddingThreads) {
    return LaunchKernel(EmbeddingKernel<1>, shape, options, args);
  }
  shape.grid = dim3(static_cast<unsigned>((params.num_tokens + 1) / 2));
  LaunchKernel(EmbeddingKernel<2>, shape, options, args);
}

}  // namespace tokline
