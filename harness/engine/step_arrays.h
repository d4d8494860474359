// The arrays of one step that depend on tokens, positions and pages: all inputs of a forward pass
// except weights. They are in one block whose layout follows from the step's shape. One copy
// therefore uploads them, and a captured graph finds them at the same addresses in every step of
// its shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/common/chunk_table.h"
#include "kernels/common/device_facts.h"
#include "kernels/common/paged_kv_layout.h"
#include "kernels/paged_prefill/paged_prefill.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

enum class AttentionKind : uint8_t { kChunkDecode, kPagedPrefill };

// The shape of an attention launch (one per layer): query rows of sequences, each with one or more
// chunks.
struct AttentionShape {
  AttentionKind kind = AttentionKind::kChunkDecode;
  int32_t num_seqs = 0;
  int64_t num_tokens = 0;   // query rows; equals num_seqs with kChunkDecode
  int64_t max_pages = 0;    // room for page ids of all sequences
  int32_t more_chunks = 0;  // room for chunks of all sequences in addition to one each
  ChunkDecodeGrid grid;     // for kChunkDecode on CUDA only
  // For kChunkDecode: the largest number of shared runs per sequence, and the largest numbers of
  // sequences that read a run together in a task of a lane and of a run lane.
  int32_t shared_runs = 0;
  int32_t task_members = 1;
  int32_t run_task_members = 1;
  // Room for kPagedPrefill's. Without parts, no context is cut.
  int64_t max_tiles = 0;
  int32_t max_parts = 0;
  // For kPagedPrefill on CUDA: set by PlanAttention. The layout of the arrays does not depend on
  // it.
  int32_t num_blocks = 0;
  int32_t num_tiles = 0;
  int32_t num_parts = 0;
  int32_t tile_tokens = 0;

  int32_t MaxChunks() const { return num_seqs + more_chunks; }
};

// A step has one row per seat with a token to decode (a seat that does not decode is a padding
// row), followed by the new tokens of sequences that prefill.
struct StepShape {
  AttentionShape decode = {};
  AttentionShape prefill = {};
  int32_t logit_rows = 0;   // one per seat
  bool one_kernel = false;  // runs as decode_step; there is no prefill, and decode has no plan

  int64_t Tokens() const { return decode.num_tokens + prefill.num_tokens; }
};

struct AttentionArrays {
  int32_t* seq_chunk_indptr = nullptr;   // [num_seqs + 1]
  int32_t* seq_chunks = nullptr;         // [MaxChunks()] chunks; sequences may share them
  int32_t* chunk_lengths = nullptr;      // [MaxChunks()]
  int32_t* chunk_page_indptr = nullptr;  // [MaxChunks() + 1]
  int32_t* chunk_pages = nullptr;        // [max_pages]; last, because only the used part is copied
  // For kPagedPrefill:
  int32_t* q_indptr = nullptr;        // [num_seqs + 1]
  PagedPrefillTile* tiles = nullptr;  // [max_tiles]
  PagedPrefillPart* parts = nullptr;  // [max_parts]
  std::byte* plan = nullptr;          // for kChunkDecode on CUDA; room for DecodeRoomOf(shape)

  ChunkTableView Table(const AttentionShape& shape) const;
};

// T = Tokens(); the decode rows come first.
struct StepArrays {
  int64_t* bytes_used = nullptr;    // [1] of the block, from its beginning; comes first
  int32_t* prefill_ids = nullptr;   // [prefill.num_tokens]; decode rows take the sampled tokens
  int32_t* positions = nullptr;     // [T]
  int64_t* slots = nullptr;         // [T] slots in the KV cache; -1: padding
  int32_t* logit_tokens = nullptr;  // [logit_rows] rows of the step; -1: none
  SamplingRule* rules = nullptr;    // [logit_rows]
  int32_t* only_best = nullptr;     // [logit_rows] 1: only the row's largest logit is wanted
  int32_t* parts = nullptr;         // [decode.num_seqs] of the contexts, if the step is one_kernel
  AttentionArrays prefill;
  AttentionArrays decode;
  int64_t bytes = 0;  // size of the block
};

// Lays out the arrays of a step from `base` on. With a null base it only measures.
StepArrays PlaceStep(const StepShape& shape, std::byte* base);

// Returns an upper bound on the plan of chunk_decode for any table of a shape. A sequence has a
// task for each shared run and one for the rest. There are fewer cuts of shared runs than lanes and
// run lanes, and fewer cuts of the rest than lanes. A cut adds a task with all members of the
// segment that it cuts. Each member of a task has at most one partial state.
ChunkDecodePlanRoom DecodeRoomOf(const AttentionShape& shape);

// Writes the sequences of an attention launch one after another into host arrays.
class TableWriter {
 public:
  TableWriter(const AttentionShape& shape, const AttentionArrays& arrays);

  // Adds a chunk to the current sequence; `pages` hold `length` tokens. Returns its id.
  int32_t AddChunk(std::span<const int32_t> pages, int32_t length);
  // Lists a chunk that an earlier sequence has added in the current sequence, too.
  void ListChunk(int32_t chunk);
  // Ends the current sequence, whose last `new_tokens` tokens are queries.
  void EndSequence(int32_t new_tokens);
  // Adds a sequence of one chunk.
  void Add(std::span<const int32_t> pages, int32_t length, int32_t new_tokens);
  int64_t PagesUsed() const { return pages_; }

 private:
  AttentionShape shape_;
  AttentionArrays arrays_;
  int32_t seqs_ = 0;
  int32_t chunks_ = 0;
  int32_t listings_ = 0;  // number of entries in seq_chunks
  int64_t pages_ = 0;
};

// Plans the launch from host arrays that a TableWriter has filled, and writes the plan into the
// arrays and the shape. Does nothing without a device (facts of 0 SMs). `runs` are the shared runs
// that a kChunkDecode launch reads once.
void PlanAttention(AttentionShape& shape, const AttentionArrays& arrays,
                   const PagedKvLayout& layout, int32_t num_q_heads, const DeviceFacts& device,
                   std::span<const SharedRun> runs = {});

}  // namespace tokline
