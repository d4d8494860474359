// Attention of one new token a sequence over its KV chunks in a paged cache: online softmax,
// grouped-query heads, split-KV with a deterministic merge, shared chunks read once.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/chunk_table.h"
#include "kernels/common/cost.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// KV tokens that a pipeline stage holds. Plans cut ranges at multiples of it, so that a 16-token
// sub-tile never straddles two pages.
inline constexpr int32_t kChunkDecodeTileTokens = 64;

// A run of KV tokens within one chunk, all with the same shift for every member of its task.
struct ChunkDecodeRange {
  int32_t page_begin;   // index into chunk_pages of the chunk's first page
  int32_t token_begin;  // within the chunk
  int32_t token_end;
};

// Attention of some sequences (its members) over some ranges, for one KV head, by one block. At
// most kChunkDecodeMaxRows query rows: member_count times the query heads of a KV head.
inline constexpr int32_t kChunkDecodeMaxRows = 64;
struct ChunkDecodeTask {
  int32_t member_begin;  // into ChunkDecodePlan::members
  int32_t member_count;
  int32_t range_begin;  // into ChunkDecodePlan::ranges
  int32_t range_end;
  // 1: every lane of the cluster has such a task, of the same one member, as its last, and together
  // they write it out; it may have no ranges. 0: the task makes states of its own.
  int32_t clustered;
};

struct ChunkDecodeMember {
  int32_t seq;
  int32_t shift;    // position shift of the task's KV for this sequence
  int32_t partial;  // where the partial state goes; -1: the task is the sequence's only one
};

// Lanes, which are blocks of each KV head, and how many consecutive ones are a cluster, whose
// shared memory merges the states of one sequence. Constant in a captured graph.
struct ChunkDecodeGrid {
  int32_t num_lanes = 0;  // a multiple of cluster_lanes
  int32_t cluster_lanes = 1;
  bool operator==(const ChunkDecodeGrid&) const = default;
};

// What one step does, as flat arrays for the device. Made on the host by PlanChunkDecode.
struct ChunkDecodePlan {
  int32_t num_seqs = 0;
  ChunkDecodeGrid grid;                   // each lane runs its tasks in order
  int32_t num_partials = 0;               // partial states a KV head
  std::vector<int32_t> lane_task_indptr;  // [grid.num_lanes + 1] into tasks
  std::vector<ChunkDecodeTask> tasks;
  std::vector<ChunkDecodeRange> ranges;
  std::vector<ChunkDecodeMember> members;
  std::vector<int32_t> seq_partial_indptr;  // [num_seqs + 1]: a sequence's partials
};

// The plan on the device (or, for nothing but its existence, on the host): same arrays.
struct ChunkDecodePlanView {
  ChunkDecodeGrid grid = {};
  int64_t max_partials = 0;                   // room in the workspace, in partial states a KV head
  const int32_t* lane_task_indptr = nullptr;  // [grid.num_lanes + 1]
  const ChunkDecodeTask* tasks = nullptr;
  const ChunkDecodeRange* ranges = nullptr;
  const ChunkDecodeMember* members = nullptr;
  const int32_t* seq_partial_indptr = nullptr;  // [num_seqs + 1]
};

struct ChunkDecodeParams {
  DType dtype = DType::kBf16;  // of q, kv and out
  int32_t num_q_heads = 0;     // a multiple of layout.num_kv_heads, at most 16 times it
  float scale = 0;             // of the scores, usually 1 / sqrt(head_dim)
  PagedKvLayout layout = {};
  ChunkTableView table = {};  // host pointers for the reference, device pointers for CUDA

  const void* q = nullptr;   // [num_seqs, num_q_heads, head_dim], rows 16 B aligned
  int64_t q_stride = 0;      // elements between sequences
  const void* kv = nullptr;  // the layer's pool, as layout says, 16 B aligned
  void* out = nullptr;       // [num_seqs, num_q_heads, head_dim], rows 16 B aligned
  int64_t out_stride = 0;
  float* lse_ln = nullptr;  // [num_seqs, num_q_heads] natural log-sum-exp of the scaled scores, or
                            // null. Empty sequence: out 0, lse -inf.

  // cos, sin of RoPE angles for |shift|: [rope_rows, head_dim / 2] pairs; null when no shift is
  // used. Pairs are (i, i + head_dim / 2), as in Llama and Qwen.
  const float* rope_cos_sin = nullptr;
  int64_t rope_rows = 0;

  ChunkDecodePlanView plan = {};  // CUDA only
  void* workspace = nullptr;  // CUDA only, 256 B aligned; its first ChunkDecodeCounterBytes must
                              // be zero before the first launch; every launch leaves them zero
  int64_t workspace_bytes = 0;
};

// Whether chunks that several sequences list are read once for all of them.
enum class ChunkSharing : uint8_t {
  kNever,
  kWhenItPays,  // where that ends 4 us or more earlier, by a model of the time; see SharingPays
  kAlways,      // to test and to measure
};

struct ChunkDecodePlanOptions {
  // Split a sequence by its own length alone, so that its output does not depend on the sequences
  // around it, bit by bit. Off: split so that the device is evenly busy.
  bool batch_invariant = false;
  ChunkSharing sharing = ChunkSharing::kWhenItPays;
  // The grid; no lanes: as ChooseChunkDecodeGrid says, or without clusters where a sequence is not
  // one segment of its own (shared or shifted chunks) or batch_invariant is asked for.
  ChunkDecodeGrid grid = {};
};

// Plans a step. `table` is a host table that Validate(table, layout) accepts. Pure.
ChunkDecodePlan PlanChunkDecode(const ChunkTableView& table, const PagedKvLayout& layout,
                                int32_t num_q_heads, const DeviceFacts& device,
                                const ChunkDecodePlanOptions& options = {});

// As many lanes as the device runs at a time, without clusters: serves any table.
ChunkDecodeGrid ChunkDecodeFullGrid(const PagedKvLayout& layout, const DeviceFacts& device);

// The grid for sequences of at most `longest` tokens, of one chunk or several unshared and
// unshifted ones: a cluster each where they are few and short, else the full grid.
ChunkDecodeGrid ChooseChunkDecodeGrid(int32_t num_seqs, int64_t longest,
                                      const PagedKvLayout& layout, const DeviceFacts& device);

// Upper bound of ChunkDecodePlan::num_partials for any table of `num_seqs` sequences of one
// unshared and unshifted chunk each: what a captured graph must have room for.
int64_t ChunkDecodeMaxPartials(int32_t num_seqs, const PagedKvLayout& layout,
                               const DeviceFacts& device,
                               const ChunkDecodePlanOptions& options = {});

int64_t ChunkDecodeCounterBytes(int32_t num_seqs, const PagedKvLayout& layout);
int64_t ChunkDecodeWorkspaceBytes(int32_t num_seqs, int64_t max_partials, int32_t num_q_heads,
                                  const PagedKvLayout& layout);

// Throws InvalidArgument. What depends on table contents is checked by Validate(table, layout).
void Validate(const ChunkDecodeParams& params);

// Needs a host table in params.table.
Cost CostOf(const ChunkDecodeParams& params);

void Launch(const ChunkDecodeParams& params, const LaunchOptions& options);

}  // namespace tokline
