// Copies table rows to output rows, or adds position rows to them.
//
// Grid: one block per token, or per two tokens if many short rows are copied. Its threads stride
//   over the rows in 16-byte vectors, with four in flight, or with one of each of two rows.
// Dependent launch: everything is read after the wait, because sampling may just have written the
//   ids.
#pragma once

#include <cstdint>

#include "kernels/device/convert.cuh"
#include "kernels/device/ptx/grid_dependency.cuh"

namespace tokline {

inline constexpr int kEmbeddingThreads = 128;

struct EmbeddingArgs {
  const int32_t* token_ids;
  const uint4* table;
  uint4* out;
  int64_t num_tokens;
  int64_t first_id, vocab_size;
  int64_t vectors;  // 16-byte vectors per row
};

template <int kTokens>
__global__ void __launch_bounds__(kEmbeddingThreads)
    EmbeddingKernel(const __grid_constant__ EmbeddingArgs args) {
  constexpr int kUnroll = kTokens == 1 ? 4 : 1;
  ptx::GridDependencyLaunch();
  ptx::GridDependencyWait();
  const int64_t first = int64_t{blockIdx.x} * kTokens;
  const uint4* source[kTokens];  // null: a row of zeros
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int64_t token = min(first + t, args.num_tokens - 1);
    const int64_t id = args.token_ids[token] - args.first_id;
    source[t] = id >= 0 && id < args.vocab_size ? args.table + id * args.vectors : nullptr;
  }
  uint4* const target = args.out + first * args.vectors;
  const int64_t tokens = args.num_tokens - first;
  for (int64_t base = threadIdx.x; base < args.vectors; base += kUnroll * kEmbeddingThreads) {
    uint4 data[kTokens][kUnroll] = {};
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t i = base + u * kEmbeddingThreads;
        if (source[t] != nullptr && i < args.vectors) data[t][u] = source[t][i];
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t i = base + u * kEmbeddingThreads;
        if (i < args.vectors && t < tokens) target[t * args.vectors + i] = data[t][u];
      }
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
