// Attention of one new token per sequence over its KV chunks in a paged cache: online softmax,
// grouped-query heads, split-KV with a deterministic merge, shared chunks read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
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

// Consecutive KV tokens of one chunk, all with the same shift for every member of its task.
struct ChunkDecodeRange {
  int32_t page_begin;   // index into chunk_pages of the chunk's first page
  int32_t token_begin;  // within the chunk
  int32_t token_end;
};

struct ChunkDecodeMember {
  int32_t seq;
  int32_t shift;  // position shift of the task's KV for this sequence
  // Where the partial state goes; -1: nowhere, because the task is the sequence's only one, or is
  // that of a warp which adds the states of run lanes to its own.
  int32_t partial;
};

// Attention of some sequences (its members) over some ranges, for one KV head, by one lane. At most
// kChunkDecodeMaxRows query rows: member_count times the query heads of a KV head. A task of a run
// lane only makes partial states, and each of its members has a task of another lane too.
inline constexpr int32_t kChunkDecodeMaxRows = 64;
inline constexpr int32_t kChunkDecodeRunRows = 128;  // of a task of a run lane
struct alignas(16) ChunkDecodeTask {
  int32_t member_begin;  // into the plan's members
  int16_t member_count;
  // 1: the last task of every lane of the cluster is such a task for the same single member, and
  // together they write its output; it may have no ranges. 0: the task makes a state of its own.
  // Where lanes form clusters, such a task has one member and no ranges, and nothing is partial.
  int16_t clustered;
  int32_t range_begin;  // into the plan's ranges
  int32_t range_end;
  // Copies of what most tasks have alone, so that a block begins without loading it.
  ChunkDecodeRange first_range;    // if there is one
  ChunkDecodeMember first_member;  // if there is one
  int32_t first_states;            // partial states of its sequence
  int32_t first_states_begin;      // where they begin
};

// What a lane needs to load its first tile, so that one load finds it all: copies of what the other
// arrays have.
struct alignas(16) ChunkDecodeLaneStart {
  // The task that it loads first: where lanes form clusters its last one, otherwise its first one.
  ChunkDecodeTask task = {};
  // The pages of the task's first tile, 16 tokens each; 0 where it has no tokens.
  int32_t pages[kChunkDecodeTileTokens / 16] = {};
  int32_t task_begin = 0, task_end = 0;  // as lane_task_indptr has them
};

// A lane is one block per KV head, or one warp where a block has several lanes. cluster_lanes
// consecutive lanes form a cluster, which merges the states of one sequence in its shared memory.
// The grid is constant in a captured graph.
struct ChunkDecodeGrid {
  int32_t num_lanes = 0;  // a multiple of cluster_lanes and of block_lanes
  int32_t cluster_lanes = 1;
  int32_t block_lanes = 1;  // 1, or the number of warps of a block
  // Lanes of a kernel of its own that runs first and reads what many sequences share, by wgmma
  // (sm_90a): one block per KV head each. There are none with clusters. They come after the others,
  // and their tasks have up to kChunkDecodeRunRows rows.
  int32_t run_lanes = 0;
  // Lanes of a warp take parts of sequences that are much longer than the others. Not with run
  // lanes.
  bool takes_parts = false;
  bool operator==(const ChunkDecodeGrid&) const = default;
  // Whether a lane or cluster can only read sequences that have all that they read to themselves.
  constexpr bool ReadsWhole() const { return cluster_lanes > 1 || block_lanes > 1; }
  constexpr int32_t AllLanes() const { return num_lanes + run_lanes; }
};
std::ostream& operator<<(std::ostream& out, const ChunkDecodeGrid& grid);

// The arrays of a plan, on the device or on the host.
struct ChunkDecodePlanView {
  ChunkDecodeGrid grid = {};
  const int32_t* lane_task_indptr = nullptr;  // [grid.AllLanes() + 1] into tasks, which a lane
                                              // runs in order
  const ChunkDecodeTask* tasks = nullptr;
  const ChunkDecodeRange* ranges = nullptr;
  const ChunkDecodeMember* members = nullptr;
  const int32_t* seq_partial_indptr = nullptr;  // [num_seqs + 1]: the partial states of a sequence
  const ChunkDecodeLaneStart* lane_starts = nullptr;  // [grid.num_lanes]
};

// How long the arrays of a plan are, or may become. They lie in one block of bytes, which can be
// copied anywhere. Their offsets follow from the room alone, so a captured graph finds the plans of
// all its steps at the same addresses.
struct ChunkDecodePlanRoom {
  ChunkDecodeGrid grid;
  int64_t num_seqs = 0;
  int64_t tasks = 0;
  int64_t ranges = 0;
  int64_t members = 0;

  int64_t Bytes() const;
  // The arrays in a block of Bytes() bytes, 16 B aligned; null pointers if `block` is null.
  ChunkDecodePlanView View(const std::byte* block) const;
  bool Holds(const ChunkDecodePlanRoom& other) const;
};

// What one step does. PlanChunkDecode makes it on the host.
struct ChunkDecodePlan {
  ChunkDecodePlanRoom size;      // exactly what it takes
  std::vector<std::byte> block;  // [size.Bytes()]
  int32_t num_partials = 0;      // partial states per KV head
  bool reads_once = false;       // some task has several members

  ChunkDecodePlanView View() const { return size.View(block.data()); }
  std::span<const int32_t> LaneTaskIndptr() const;
  std::span<const ChunkDecodeTask> Tasks() const;
  std::span<const ChunkDecodeRange> Ranges() const;
  std::span<const ChunkDecodeMember> Members() const;
  std::span<const int32_t> SeqPartialIndptr() const;

  // Copies the plan into a block of room.Bytes() bytes. Throws InvalidArgument, which states the
  // needed and the available sizes, if the room does not hold it.
  void CopyTo(const ChunkDecodePlanRoom& room, std::byte* to) const;
};

struct ChunkDecodeParams {
  DType dtype = DType::kBf16;  // of q, kv and out
  int32_t num_q_heads = 0;     // a multiple of layout.num_kv_heads, at most 16 times it
  float scale = 0;             // of the scores, finite and > 0, usually 1 / sqrt(head_dim)
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

  ChunkDecodePlanView plan = {};  // CUDA only. A dependent launch reads the plan and the table
                                  // before its predecessor ends, which therefore must not write
                                  // them.
  // CUDA only, 256 B aligned, for one launch after another. It begins with
  // ChunkDecodeCounterBytes(table.num_seqs, layout) bytes of counters, which must be zero before a
  // launch and are zero again after it. What follows them is undefined after a launch. So the
  // caller zeroes them before the first launch and, since more sequences or KV heads have more
  // counters, before every launch that has more of them than the launch before in the same
  // workspace. Nothing checks that, and without it the outputs are undefined.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int64_t max_partials = 0;  // partial states per KV head for which the workspace has room; the
                             // plan has no more
  // CUDA only: of each sequence, the predecessor writes K and V of the last token at most. A
  // dependent launch then reads all others before its predecessor ends.
  bool only_last_is_new = false;
};

// Whether chunks that several sequences list are read once for all of them.
enum class ChunkSharing : uint8_t {
  kNever,
  kWhenItPays,  // if a model of the time says that the step ends at least 4 us earlier
  kAlways,      // to test and to measure
};

// Chunks that several sequences have in common. A plan may read them once for all of these.
struct SharedRun {
  struct Member {
    int32_t seq = 0;
    int32_t shift = 0;  // of all the run's chunks
    bool operator==(const Member&) const = default;
  };
  std::vector<Member> members;  // ascending, one per listing of each chunk
  std::vector<int32_t> chunks;  // that the members list and no other sequence does
  int64_t tokens = 0;           // in them
};

// Finds the shared runs of a table. kWhenItPays takes those for which SharingPays.
std::vector<SharedRun> SharedRunsOfTable(const ChunkTableView& table, int32_t group,
                                         ChunkSharing sharing = ChunkSharing::kWhenItPays);

// Whether `members` sequences gain by reading a run of `tiles` tiles once. `group` is the number of
// query heads per KV head. A search for runs takes those that pay; PlanChunkDecode decides whether
// the step as a whole gains.
bool SharingPays(int32_t members, int64_t tiles, int32_t group);

// The number of tokens, over all sequences, that need not be read if the runs are read once, by the
// lanes of such a grid.
int64_t SharedTokensSaved(std::span<const SharedRun> runs, int32_t group,
                          const ChunkDecodeGrid& grid = {});

struct ChunkDecodePlanOptions {
  // What sequences share, if anything: SharedRunsOfTable(table), or what the caller knows already.
  std::span<const SharedRun> runs = {};
  // Whether to read the runs once or, from the same table, each sequence alone. They are always
  // read alone if the grid ReadsWhole and has no run lanes.
  ChunkSharing sharing = ChunkSharing::kWhenItPays;
  // Without lanes the grid is that of ChooseChunkDecodeGrid, or the full grid if a sequence has
  // more than one segment (shared or shifted chunks), with run lanes if they read any of these.
  ChunkDecodeGrid grid = {};
  // Each sequence reads its runs alone if a plan that reads them once does not fit here. Null means
  // that any size fits.
  const ChunkDecodePlanRoom* room = nullptr;
};

// Plans a step. `table` is a host table that Validate(table, layout) accepts, with the pages that
// the launch will read: the plan has some of their numbers. A pure function.
ChunkDecodePlan PlanChunkDecode(const ChunkTableView& table, const PagedKvLayout& layout,
                                int32_t num_q_heads, const DeviceFacts& device,
                                const ChunkDecodePlanOptions& options = {});

// As many lanes of a block as the device runs at a time. This grid serves any table.
ChunkDecodeGrid ChunkDecodeFullGrid(const PagedKvLayout& layout, const DeviceFacts& device);

// One cluster per sequence, as large as the device runs at the same time for every sequence and KV
// head. One lane per cluster where there is no such size.
ChunkDecodeGrid ChunkDecodeClusterGrid(int32_t num_seqs, const PagedKvLayout& layout,
                                       const DeviceFacts& device);

// As many lanes of a warp as the device runs at a time, for whole sequences; no lanes where blocks
// get too little shared memory for it.
ChunkDecodeGrid ChunkDecodeWarpGrid(const PagedKvLayout& layout, const DeviceFacts& device);

// All that ChooseChunkDecodeGrid may choose from, the full grid first.
std::vector<ChunkDecodeGrid> ChunkDecodeGrids(int32_t num_seqs, const PagedKvLayout& layout,
                                              const DeviceFacts& device);

// What a step reads, as far as its grid depends on it.
struct ChunkDecodeLoad {
  int32_t num_seqs = 0;
  int64_t longest = 0;       // tokens of the longest sequence
  int64_t tokens = 0;        // of all sequences
  int64_t tokens_saved = 0;  // of them, that lanes of the full grid need not read; see SharedRun
};

// The grid for sequences whose chunks are not shifted: the one of ChunkDecodeGrids that takes the
// least time by a model. `group` is the number of query heads per KV head.
ChunkDecodeGrid ChooseChunkDecodeGrid(const ChunkDecodeLoad& load, const PagedKvLayout& layout,
                                      int32_t group, const DeviceFacts& device);

// The grids with run lanes, whose other lanes are blocks or warps; none if the loaded code is not
// for sm_90a. There are as many run lanes as SMs, for one block has all of an SM's shared memory.
std::vector<ChunkDecodeGrid> ChunkDecodeRunGrids(const PagedKvLayout& layout,
                                                 const DeviceFacts& device);

// The one of these grids that takes the least time by a model; the full grid if run lanes would
// read none of the runs, or unless `sharing` is kAlways no such grid is quicker than those of
// ChunkDecodeGrids without sharing. Run lanes read runs of more query rows than a tile, without
// shifts. `lengths` are the tokens of each sequence.
ChunkDecodeGrid ChooseChunkDecodeRunGrid(std::span<const SharedRun> runs,
                                         std::span<const int64_t> lengths,
                                         const PagedKvLayout& layout, int32_t group,
                                         const DeviceFacts& device,
                                         ChunkSharing sharing = ChunkSharing::kWhenItPays);

int64_t ChunkDecodeCounterBytes(int32_t num_seqs, const PagedKvLayout& layout);
int64_t ChunkDecodeWorkspaceBytes(int32_t num_seqs, int64_t max_partials, int32_t num_q_heads,
                                  const PagedKvLayout& layout);

// Both throw InvalidArgument. ValidateShifts checks what depends on the contents of a host table:
// Validate(table, layout), and that the angles of every shift are among `rope_rows` rows.
void Validate(const ChunkDecodeParams& params);
void ValidateShifts(const ChunkTableView& table, const PagedKvLayout& layout, int64_t rope_rows);

// Needs a host table in params.table.
Cost CostOf(const ChunkDecodeParams& params);

void Launch(const ChunkDecodeParams& params, const LaunchOptions& options);

// How many blocks of such a launch the current device runs at a time. Grids are made for it.
int64_t ResidentBlocks(const ChunkDecodeParams& params);

}  // namespace tokline
