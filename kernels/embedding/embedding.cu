// Launches the embedding kernel.
#include "kernels/embedding/embedding.h"

#include <limits>

#include "kernels/device/launch.cuh"
#include "kernels/embedding/embedding_device.cuh"

namespace tokline {

void Launch(const EmbeddingParams& params, const LaunchOptions& options) {
  Validate(params);
  if (params.num_tokens == 0) return;
  Require(params.num_tokens <= std::numeric_limits<int32_t>::max(), "num_tokens is ",
          params.num_tokens, "; embedding on CUDA takes at most ",
          std::numeric_limits<int32_t>::max());
  // Rows are copied bit by bit, so the element type only sets their length.
  const int64_t vectors = params.hidden_size * SizeOf(params.dtype) / 16;
  LaunchKernel(
      EmbeddingKernel,
      {.grid = dim3(static_cast<unsigned>(params.num_tokens)), .block = dim3(kEmbeddingThreads)},
      options, params.token_ids, static_cast<const uint4*>(params.table),
      static_cast<uint4*>(params.out), params.vocab_size, vectors);
}

}  // namespace tokline
