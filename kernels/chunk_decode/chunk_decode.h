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
  // Index of the partial state; -1: none is stored, because the task is the sequence's only one, or
  // belongs to a warp that adds the states of run lanes to its own.
  int32_t partial;
};

// Attention of some sequences (its members) over some ranges, for one KV head, by one lane. At most
// kChunkDecodeMaxRows query rows: member_count times the query heads of a KV head. A task of a run
// lane only produces partial states, and each of its members also has a task of another lane.
inline constexpr int32_t kChunkDecodeMaxRows = 64;
inline constexpr int32_t kChunkDecodeRunRows = 128;  // of a task of a run lane
struct alignas(16) ChunkDecodeTask {
  int32_t member_begin;  // into the plan's members
  int16_t member_count;
  // 1: the last task of every lane of the cluster is such a task for the same single member, and
  // together they write its output, or leave one partial state; it may have no ranges. 0: the task
  // produces its own state.
  // Where lanes form clusters, such a task has one member and no ranges, and is not partial.
  int16_t clustered;
  int32_t range_begin;  // into the plan's ranges
  int32_t range_end;
  // Copies of the only range and member that most tasks have, so that a block begins without
  // loading them.
  ChunkDecodeRange first_range;    // if there is one
  ChunkDecodeMember first_member;  // if there is one
  int32_t first_states;            // partial states of its sequence
  int32_t first_states_begin;      // where they begin
};

// Everything that a lane needs to load its first tile, gathered so that a single load fetches it:
// copies of data in the other arrays.
struct alignas(16) ChunkDecodeLaneStart {
  // The task that the lane loads first: its last one if lanes form clusters, otherwise its first
  // one.
  ChunkDecodeTask task = {};
  // The pages of the task's first tile, 16 tokens each; 0 where it has no tokens.
  int32_t pages[kChunkDecodeTileTokens / 16] = {};
  int32_t task_begin = 0, task_end = 0;  // as lane_task_indptr has them
};

// A lane is one block per KV head, or one warp where a block has several lanes. cluster_lanes
// consecutive lanes form a cluster, which merges the states of one sequence, or of a part of it, in
// its shared memory.
// The grid is constant in a captured graph.
struct ChunkDecodeGrid {
  int32_t num_lanes = 0;  // a multiple of cluster_lanes and of block_lanes
  int32_t cluster_lanes = 1;
  int32_t block_lanes = 1;  // 1, or the number of warps of a block
  // The lanes of a separate kernel that runs first and reads with wgmma (sm_90a) what many
  // sequences share: each is one block per KV head. There are none with clusters. They come after
  // the others, and their tasks have up to kChunkDecodeRunRows rows.
  int32_t run_lanes = 0;
  // Whether warp lanes or clusters take parts of sequences that are longer than the others. Never
  // set with run lanes.
  bool takes_parts = false;
  // In how many waves clusters with parts run. All other grids run at once.
  int8_t waves = 1;
  bool operator==(const ChunkDecodeGrid&) const = default;
  constexpr int32_t LanesAtOnce() const { return num_lanes / waves; }
  // Whether only clusters with parts have several waves, each of whole clusters.
  constexpr bool HasWholeWaves() const {
    return waves == 1 || (waves > 1 && takes_parts && cluster_lanes > 1 &&
                          num_lanes % (waves * cluster_lanes) == 0);
  }
  // Whether each lane or cluster can only read sequences that share nothing with others, apart from
  // what run lanes read.
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

// The sizes, or maximum sizes, of a plan's arrays. The arrays lie in one block of bytes, which can
// be copied anywhere. Their offsets follow from the room alone, so a captured graph finds the plans
// of all its steps at the same addresses.
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

// The plan of one step. PlanChunkDecode computes it on the host.
struct ChunkDecodePlan {
  ChunkDecodePlanRoom size;      // the exact sizes
  std::vector<std::byte> block;  // [size.Bytes()]
  int32_t num_partials = 0;      // partial states per KV head

  ChunkDecodePlanView View() const { return size.View(block.data()); }
  std::span<const int32_t> LaneTaskIndptr() const;
  std::span<const ChunkDecodeTask> Tasks() const;
  std::span<const ChunkDecodeRange> Ranges() const;
  std::span<const ChunkDecodeMember> Members() const;
  std::span<const int32_t> SeqPartialIndptr() const;

  // Copies the plan into a block of room.Bytes() bytes. Throws InvalidArgument, which states the
  // needed and the available sizes, if the plan does not fit the room.
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
                                  // before its predecessor ends, so the predecessor must not write
                                  // them.
  // CUDA only, 256 B aligned, for one launch after another. It begins with
  // ChunkDecodeCounterBytes(table.num_seqs, layout) bytes of counters, which must be zero before a
  // launch and are zero again after it. The rest of the workspace is undefined after a launch. So
  // the caller zeroes them before the first launch and, since more sequences or KV heads have more
  // counters, before every launch that has more of them than the launch before in the same
  // workspace. Nothing checks this, and otherwise the outputs are undefined.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int64_t max_partials = 0;  // partial states per KV head for which the workspace has room; the
                             // plan must not have more
  // CUDA only: the predecessor writes K and V of at most the last token of each sequence. A
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
  std::vector<int32_t> chunks;  // listed by the members and by no other sequence
  int64_t tokens = 0;           // in them
};

// Finds the shared runs of a table. kWhenItPays keeps only those for which SharingPays holds.
std::vector<SharedRun> SharedRunsOfTable(const ChunkTableView& table, int32_t group,
                                         ChunkSharing sharing = ChunkSharing::kWhenItPays);

// Whether it pays for `members` sequences to read a run of `tiles` tiles once. `group` is the
// number of query heads per KV head. A search for runs keeps those that pay;
// ChooseChunkDecodeSharing decides whether the step as a whole gains.
bool SharingPays(int32_t members, int64_t tiles, int32_t group);

// The number of tokens, over all sequences, that need not be read if the lanes of such a grid read
// the runs once.
int64_t SharedTokensSaved(std::span<const SharedRun> runs, int32_t group,
                          const ChunkDecodeGrid& grid = {});

// How a step reads the contexts of its sequences.
struct ChunkDecodeChoice {
  // The runs that are read once. Each sequence reads everything else by itself.
  std::span<const SharedRun> runs = {};
  // Without lanes: the grid of ChooseChunkDecodeGrid, or the full grid if a sequence has more than
  // one segment (shared or shifted chunks).
  ChunkDecodeGrid grid = {};
  int64_t tokens_saved = 0;  // SharedTokensSaved of these runs on this grid
};

// Decides whether a step reads the shared runs of a table once, all of them or none, and on which
// grid. Everything that follows, PlanChunkDecode included, obeys. With kWhenItPays the runs are
// read once if a model of the time says that the step ends at least 4 us earlier. `grid` is the
// grid that the caller launches unless run lanes read the runs. If it ReadsWhole(), only run lanes
// read anything once. If it has no lanes, the fastest grid of each way is considered.
// Without a device (0 SMs) all runs are read once. `table` is a host table that lists the runs'
// chunks; its pages are not read and may be null. A pure function.
ChunkDecodeChoice ChooseChunkDecodeSharing(const ChunkTableView& table,
                                           std::span<const SharedRun> runs,
                                           const PagedKvLayout& layout, int32_t num_q_heads,
                                           const DeviceFacts& device,
                                           ChunkSharing sharing = ChunkSharing::kWhenItPays,
                                           const ChunkDecodeGrid& grid = {});

// Plans a step that reads as `choice` says. `table` is a host table that Validate(table, layout)
// accepts, with the pages that the launch will read: the plan contains some of their numbers.
// Throws InvalidArgument if the grid cannot read the table like this. A pure function.
ChunkDecodePlan PlanChunkDecode(const ChunkTableView& table, const PagedKvLayout& layout,
                                int32_t num_q_heads, const DeviceFacts& device,
                                const ChunkDecodeChoice& choice = {});

// As many block lanes as the device runs at a time. This grid serves any table.
ChunkDecodeGrid ChunkDecodeFullGrid(const PagedKvLayout& layout, const DeviceFacts& device);

// One cluster per sequence, of the largest size up to `max_lanes`, a power of two, with which the
// device runs the clusters of all sequences and KV heads at the same time. One lane per cluster if
// there is no such size.
ChunkDecodeGrid ChunkDecodeClusterGrid(int32_t num_seqs, const PagedKvLayout& layout,
                                       int32_t max_lanes, const DeviceFacts& device);

// Clusters of this size among which parts of sequences are dealt: as many as the device runs at the
// same time or, if these are fewer than two per sequence, a whole multiple of them. No lanes if
// that takes more than kChunkDecodeMaxWaves waves, or more than one of clusters of sixteen.
ChunkDecodeGrid ChunkDecodePartsGrid(int32_t num_seqs, const PagedKvLayout& layout,
                                     int32_t cluster_lanes, const DeviceFacts& device);

// As many warp lanes as the device runs at a time, for whole sequences; no lanes if blocks get too
// little shared memory for them.
ChunkDecodeGrid ChunkDecodeWarpGrid(const PagedKvLayout& layout, const DeviceFacts& device);

// All grids that ChooseChunkDecodeGrid may choose from, the full grid first. For no sequences there
// is no other.
std::vector<ChunkDecodeGrid> ChunkDecodeGrids(int32_t num_seqs, const PagedKvLayout& layout,
                                              const DeviceFacts& device);

// The quantities of a step's reads on which its grid depends.
struct ChunkDecodeLoad {
  int32_t num_seqs = 0;
  int64_t longest = 0;       // tokens of the longest sequence
  int64_t tokens = 0;        // of all sequences
  int64_t tokens_saved = 0;  // those of `tokens` that the full grid's lanes need not read again
                             // because they are shared; see SharedRun
};

// The grid for sequences whose chunks are not shifted: the one of ChunkDecodeGrids that takes the
// least time by a model. `group` is the number of query heads per KV head.
ChunkDecodeGrid ChooseChunkDecodeGrid(const ChunkDecodeLoad& load, const PagedKvLayout& layout,
                                      int32_t group, const DeviceFacts& device);

// The grids with run lanes, whose other lanes are blocks or warps. There are none if the loaded
// code is not for sm_90a. The blocks of run lanes are about as many as SMs, because one block takes
// all of an SM's shared memory.
std::vector<ChunkDecodeGrid> ChunkDecodeRunGrids(const PagedKvLayout& layout,
                                                 const DeviceFacts& device);

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

// How many blocks of such a launch the current device runs at a time. Grids are sized accordingly.
int64_t ResidentBlocks(const ChunkDecodeParams& params);

}  // namespace tokline
