// Copies table rows to output rows.
//
// Grid: a block a token; its threads stride over the row in 16-byte vectors, kUnroll in flight.
// Dependent launch: everything is read after the wait, as sampling may just have written the ids.
#pragma once

#include <cstdint>

#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {

inline constexpr int kEmbeddingThreads = 128;

// `vectors` 16-byte vectors a row.
__global__ void __launch_bounds__(kEmbeddingThreads)
    EmbeddingKernel(const int32_t* token_ids, const uint4* table, uint4* out, int64_t vocab_size,
                    int64_t vectors) {
  constexpr int kUnroll = 4;
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t token = blockIdx.x;
  const int64_t id = token_ids[token];
  const bool known = id >= 0 && id < vocab_size;
  const uint4* const source = table + (known ? id : 0) * vectors;
  uint4* const target = out + token * vectors;
  for (int64_t base = threadIdx.x; base < vectors; base += kUnroll * kEmbeddingThreads) {
    uint4 data[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = base + u * kEmbeddingThreads;
      if (known && i < vectors) data[u] = source[i];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = base + u * kEmbeddingThreads;
      if (i < vectors) target[i] = data[u];
    }
  }
}

}  // namespace tokline
