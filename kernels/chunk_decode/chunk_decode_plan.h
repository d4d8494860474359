// Numbers that the plan and the kernel of chunk_decode must agree on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

inline constexpr int32_t kChunkDecodeStages = 3;
// Query rows of a tile. The warps of a block share the tokens of a task of up to this many rows;
// with more rows, each warp takes all tokens for its own rows.
inline constexpr int32_t kChunkDecodeNarrowRows = 16;
// The most lanes in a cluster, and the most that most devices with clusters can run. Fewer states
// make the kernel of the latter shorter.
inline constexpr int32_t kChunkDecodeMaxClusterLanes = 16;
inline constexpr int32_t kChunkDecodeClusterLanes = 8;
// A grid of clusters with parts has at most this many waves.
inline constexpr int32_t kChunkDecodeMaxWaves = 4;

// Dynamic shared memory of a block: the K and V ring.
constexpr int64_t ChunkDecodeSharedBytes(int32_t head_dim) {
  return int64_t{kChunkDecodeStages} * 2 * kChunkDecodeTileTokens * head_dim * 2;
}
// The most static shared memory that a block has besides the ring. Compute capabilities 8.6, 8.9
// and 12.0 give a block 99 KB, and the ring takes 96 KB of them at head_dim 128.
inline constexpr int64_t kChunkDecodeStaticSharedBytes = 2944;
constexpr int64_t ChunkDecodeBlockBytes(int32_t head_dim) {
  return ChunkDecodeSharedBytes(head_dim) + kChunkDecodeStaticSharedBytes;
}

// Registers per thread. At head_dim 128, two blocks with 256 would leave no registers for blocks of
// the kernels before and after, which could then not run next to these.
constexpr int32_t ChunkDecodeRegisters(int32_t head_dim) { return head_dim == 64 ? 128 : 240; }

// The number of blocks of `block_bytes` that share an SM: as many as fit, at least one, and at most
// the number with which the same number of bytes is in flight for either head_dim.
constexpr int64_t ChunkDecodeBlocksPerSmOf(int64_t block_bytes, int32_t head_dim,
                                           const DeviceFacts& device) {
  return std::clamp<int64_t>(device.BlocksPerSm(block_bytes), 1, head_dim == 64 ? 4 : 2);
}
// How many blocks share an SM if lanes are blocks, each with `more_bytes` besides those of its
// ring.
constexpr int64_t ChunkDecodeBlocksPerSm(int32_t head_dim, const DeviceFacts& device,
                                         int64_t more_bytes = 0) {
  return ChunkDecodeBlocksPerSmOf(ChunkDecodeBlockBytes(head_dim) + more_bytes, head_dim, device);
}

// The size of the query rows of a task with one member.
constexpr int64_t ChunkDecodeTaskQueryBytes(int32_t head_dim) {
  return int64_t{kChunkDecodeNarrowRows} * head_dim * 2;
}
// The query rows of two tasks. They are loaded with their tasks' first tiles if a block may have
// this much more shared memory and still as many blocks fit on an SM.
constexpr int64_t ChunkDecodeQueryBytes(int32_t head_dim) {
  return 2 * ChunkDecodeTaskQueryBytes(head_dim);
}
constexpr bool ChunkDecodeQueriesWithTiles(int32_t head_dim, const DeviceFacts& device) {
  const int64_t bytes = ChunkDecodeQueryBytes(head_dim);
  return ChunkDecodeBlockBytes(head_dim) + bytes <= device.shared_bytes_per_block &&
         ChunkDecodeBlocksPerSm(head_dim, device, bytes) ==
             ChunkDecodeBlocksPerSm(head_dim, device);
}

// Dynamic shared memory of a block whose warps are lanes: the ring, and the query rows of a task
// for each warp.
inline constexpr int32_t kChunkDecodeWarps = 4;
constexpr int64_t ChunkDecodeWarpsSharedBytes(int32_t head_dim) {
  return ChunkDecodeSharedBytes(head_dim) + kChunkDecodeWarps * ChunkDecodeTaskQueryBytes(head_dim);
}

// A block adds the partial states of a sequence by itself if there are at most
// kChunkDecodeStatesAtOnce times the rows that a warp adds. If there are more, they are first added
// in at most kChunkDecodeBundles bundles, and then the sums of these.
inline constexpr int32_t kChunkDecodeStatesAtOnce = 64, kChunkDecodeBundles = 16;

// The most partial states of a sequence: products of two places among them must fit into int32.
inline constexpr int32_t kChunkDecodeMaxStates = 46'340;

// The most rows of a KV head's group that a warp adds.
constexpr int32_t ChunkDecodeRowsOfWarp(int32_t group) { return (group + 3) / 4; }

// The number of bundles that `states` states make. Each has at least eight of them.
constexpr int32_t ChunkDecodeBundlesOf(int32_t states, int32_t group) {
  if (states * ChunkDecodeRowsOfWarp(group) <= kChunkDecodeStatesAtOnce) return 1;
  return states < 8 * kChunkDecodeBundles ? (states + 7) / 8 : kChunkDecodeBundles;
}

// Whether sequences that share all lanes have enough partial states on average to be added in
// bundles.
constexpr bool ChunkDecodeBundles(const ChunkDecodeGrid& grid, int32_t num_seqs, int32_t group) {
  return !grid.ReadsWhole() && int64_t{grid.num_lanes} * ChunkDecodeRowsOfWarp(group) >
                                   int64_t{num_seqs} * kChunkDecodeStatesAtOnce;
}

// The number of tokens of K and V that a stage of a run lane holds. The lane's reads are cut at
// multiples of it, so that boxes of a page's tokens make up a tile.
inline constexpr int32_t kChunkDecodeRunTileTokens = 128;
static_assert(kChunkDecodeRunTileTokens % kChunkDecodeTileTokens == 0);
// The same in tiles of kChunkDecodeTileTokens.
inline constexpr int32_t kChunkDecodeRunTiles = kChunkDecodeRunTileTokens / kChunkDecodeTileTokens;

// The query heads per KV head. Throws InvalidArgument unless they are 1 to 16.
int32_t GroupOf(int32_t num_q_heads, const PagedKvLayout& layout);

// The alignment, in bytes, of the arrays of a plan and of the workspace.
inline constexpr int64_t kChunkDecodeAlignment = 256;

// Where the parts of the workspace begin, in bytes.
struct ChunkDecodeWorkspace {
  int64_t counters = 0;  // uint32 [num_seqs, num_kv_heads, 1 + kChunkDecodeBundles]: arrivals
  int64_t max_sum = 0;   // float2 [max_partials, num_kv_heads, group]: base-2 row max, row sum
  int64_t outputs = 0;   // float [max_partials, num_kv_heads, group, head_dim], not normalised
  int64_t bytes = 0;
};
ChunkDecodeWorkspace ChunkDecodeWorkspaceLayout(int32_t num_seqs, int64_t max_partials,
                                                int32_t num_q_heads, const PagedKvLayout& layout);

}  // namespace tokline
