// Copies table rows to output rows, or adds position rows to them.
//
// Grid: one block per token. Its threads stride over the row in 16-byte vectors, kUnroll in flight.
// Dependent launch: everything is read after the wait, because sampling may just have written the
//   ids.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {

inline constexpr int kEmbeddingThreads = 128;

// `vectors` is the number of 16-byte vectors per row.
__global__ void __launch_bounds__(kEmbeddingThreads)
    EmbeddingKernel(const int32_t* token_ids, const uint4* table, uint4* out, int64_t first_id,
                    int64_t vocab_size, int64_t vectors) {
  constexpr int kUnroll = 4;
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t token = blockIdx.x;
  const int64_t id = token_ids[token] - first_id;
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

struct EmbeddingSumArgs {
  const int32_t* token_ids;
  const int32_t* positions;
  const uint4* table;
  const uint4* position_table;
  uint4* out;
  int64_t first_id, vocab_size, num_positions;
  int64_t vectors;  // 16-byte vectors per row
};

template <typename T>
__device__ __forceinline__ uint32_t Add2(uint32_t a, uint32_t b) {
  const float2 x = Unpack2<T>(a), y = Unpack2<T>(b);
  return Pack2<T>(x.x + y.x, x.y + y.y);
}

template <typename T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    EmbeddingSumKernel(const __grid_constant__ EmbeddingSumArgs args) {
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t token = blockIdx.x;
  const int64_t id = args.token_ids[token] - args.first_id, position = args.positions[token];
  // As unsigned numbers, negative ones exceed every size.
  const bool known = static_cast<uint64_t>(id) < static_cast<uint64_t>(args.vocab_size) &&
                     static_cast<uint64_t>(position) < static_cast<uint64_t>(args.num_positions);
  const uint4* const words = args.table + (known ? id : 0) * args.vectors;
  const uint4* const places = args.position_table + (known ? position : 0) * args.vectors;
  uint4* const target = args.out + token * args.vectors;
#pragma unroll 1  // one or two rounds per row; more code would have to be fetched
  for (int64_t i = threadIdx.x; i < args.vectors; i += kEmbeddingThreads) {
    uint4 sum = {};
    if (known) {
      const uint4 a = words[i], b = places[i];
      sum = {Add2<T>(a.x, b.x), Add2<T>(a.y, b.y), Add2<T>(a.z, b.z), Add2<T>(a.w, b.w)};
    }
    target[i] = sum;
  }
}

}  // namespace tokline
