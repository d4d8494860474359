// Copies paged K and V rows to contiguous tensors.
//
// Grid: one block per tile of consecutive output tokens. Warp 0 finds the sequence and the chunk of
//   the tile's first token (32 probes per step). From there one thread per token of the tile walks
//   on and stores the offset of the token's K row in shared memory. Then all threads copy 16-byte
//   vectors in output order, with four of K and four of V in flight.
// Shared memory: the tile's start and one int64 offset per token.
// Barriers: one after the start is found, one after the offsets are written.
// Dependent launch: the tables of the step are read before the wait, the pool after it.
#pragma once

#include <cstdint>

#include "kernels/device/ptx/grid_dependency.cuh"
#include "kernels/paged_gather/paged_gather_plan.h"

namespace tokline {

inline constexpr int kGatherThreads = 256;

// A position in the batch: entry `entry` of seq_chunks, whose chunk starts at output token
// `chunk_begin`.
struct GatherPlace {
  int32_t seq;
  int32_t entry;
  int32_t chunk_begin;
};

// Returns the last sequence that starts at or before `token`, which skips empty sequences before
// it. A whole warp calls it, and every lane gets the result.
__device__ __forceinline__ int32_t FindSequence(const int32_t* token_indptr, int32_t num_seqs,
                                                int32_t token) {
  const int32_t lane = threadIdx.x % 32;
  int32_t first = 0, count = num_seqs;  // the answer is in [first, first + count)
  while (count > 1) {
    const int32_t step = (count + 31) / 32;
    const int64_t probe = first + int64_t{lane} * step;
    const bool starts_before = probe < int64_t{first} + count && token_indptr[probe] <= token;
    const int32_t last = 31 - __clz(__ballot_sync(0xffffffffu, starts_before));  // probe 0 always
                                                                                 // holds
    first += last * step;
    count = min(step, count - last * step);
  }
  return first;
}

// Returns the entry of sequence `seq` that holds `token`. A whole warp calls it.
__device__ __forceinline__ GatherPlace FindChunk(const PagedGatherParams& params, int32_t seq,
                                                 int32_t token) {
  const ChunkTableView& table = params.table;
  const int32_t lane = threadIdx.x % 32;
  const int32_t end = table.seq_chunk_indptr[seq + 1];
  int32_t entry = table.seq_chunk_indptr[seq];
  int32_t begin = params.token_indptr[seq];
  while (true) {
    const int32_t mine = entry + lane;
    const int32_t length = mine < end ? table.chunk_lengths[table.seq_chunks[mine]] : 0;
    int32_t chunk_end = length;  // inclusive prefix sum over the lanes
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t below = __shfl_up_sync(0xffffffffu, chunk_end, offset);
      if (lane >= offset) chunk_end += below;
    }
    chunk_end += begin;
    const uint32_t beyond = __ballot_sync(0xffffffffu, chunk_end > token);
    const int found = beyond ? __ffs(beyond) - 1 : 31;
    const int32_t found_begin = __shfl_sync(0xffffffffu, chunk_end - length, found);
    if (beyond) return {seq, entry + found, found_begin};
    begin = __shfl_sync(0xffffffffu, chunk_end, 31);
    entry += 32;
    if (entry >= end) return {seq, end - 1, begin};  // the table contradicts token_indptr
  }
}

// Returns the offset of the K row, head 0, of a token at or after `place`.
__device__ __forceinline__ int64_t WalkTo(const PagedGatherParams& params, GatherPlace place,
                                          int32_t token) {
  const ChunkTableView& table = params.table;
  if (token >= params.token_indptr[place.seq + 1]) {
    while (place.seq + 1 < table.num_seqs && token >= params.token_indptr[place.seq + 1]) {
      ++place.seq;
    }
    place.entry = table.seq_chunk_indptr[place.seq];
    place.chunk_begin = params.token_indptr[place.seq];
  }
  int32_t chunk = table.seq_chunks[place.entry];
  int32_t length = table.chunk_lengths[chunk];
  while (token - place.chunk_begin >= length) {
    place.chunk_begin += length;
    chunk = table.seq_chunks[++place.entry];
    length = table.chunk_lengths[chunk];
  }
  const int32_t position = token - place.chunk_begin;
  const PagedKvLayout& layout = params.layout;
  const int64_t page =
      table.chunk_pages[table.chunk_page_indptr[chunk] + layout.Pages().PageOf(position)];
  return layout.KeyOffset(page, 0, layout.Pages().RowOf(position));
}

template <int kHeadDim>
__global__ void __launch_bounds__(kGatherThreads)
    PagedGatherKernel(const __grid_constant__ PagedGatherParams params, int32_t tile_tokens) {
  constexpr int kLanes = kHeadDim / 8;  // 16-byte vectors per row
  constexpr int kUnroll = 4;
  __shared__ GatherPlace start;
  __shared__ int64_t key_offset[kMaxGatherTileTokens];
  ptx::GridDependencyLaunch();

  const int64_t tile_begin = int64_t{blockIdx.x} * tile_tokens;
  const int32_t tokens =
      static_cast<int32_t>(min(int64_t{tile_tokens}, params.total_tokens - tile_begin));
  if (threadIdx.x < 32) {
    const int32_t first = static_cast<int32_t>(tile_begin);
    const int32_t seq = FindSequence(params.token_indptr, params.table.num_seqs, first);
    const GatherPlace place = FindChunk(params, seq, first);
    if (threadIdx.x == 0) start = place;
  }
  __syncthreads();
  if (threadIdx.x < tokens) {
    key_offset[threadIdx.x] =
        WalkTo(params, start, static_cast<int32_t>(tile_begin) + static_cast<int32_t>(threadIdx.x));
  }
  __syncthreads();
  ptx::GridDependencyWait();

  const uint32_t heads = params.layout.num_kv_heads;
  const uint32_t vectors = tokens * heads * kLanes;  // of K, and the same number of V
  const int64_t out_begin = tile_begin * heads * kLanes;
  const int64_t head_stride = params.layout.HeadStride() / 8;
  const int64_t value_stride = params.layout.KvStride() / 8;
  const uint4* const pool = static_cast<const uint4*>(params.kv);
  uint4* const k_out = static_cast<uint4*>(params.k_out) + out_begin;
  uint4* const v_out = static_cast<uint4*>(params.v_out) + out_begin;
  for (uint32_t base = threadIdx.x; base < vectors; base += kUnroll * kGatherThreads) {
    uint4 keys[kUnroll], values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t i = base + u * kGatherThreads;
      if (i >= vectors) continue;
      const uint32_t row = i / kLanes;
      const uint32_t token = row / heads;
      const int64_t source =
          key_offset[token] / 8 + (row - token * heads) * head_stride + i % kLanes;
      keys[u] = pool[source];
      values[u] = pool[source + value_stride];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t i = base + u * kGatherThreads;
      if (i >= vectors) continue;
      k_out[i] = keys[u];
      v_out[i] = values[u];
    }
  }
}

}  // namespace tokline
