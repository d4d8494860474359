// The arrays of one step that depend on tokens, positions and pages: everything of a forward pass
// that is neither a weight nor an activation. They lie in one block, laid out by the step's shape,
// so that one copy brings them to the device, and so that a captured graph finds them at the same
// addresses in every step of its shape.
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

// One attention launch per layer: query rows of sequences, each of one chunk or of several.
struct AttentionShape {
  AttentionKind kind = AttentionKind::kChunkDecode;
  int32_t num_seqs = 0;
  int64_t num_tokens = 0;   // query rows; with kChunkDecode as many as sequences
  int64_t max_pages = 0;    // room for page ids over all sequences
  int32_t more_chunks = 0;  // room for chunks over all sequences, beyond one each
  ChunkDecodeGrid grid;     // kChunkDecode on CUDA only
  // kChunkDecode: room for so many runs of a sequence that others share, and for so many sequences
  // that read one together.
  int32_t shared_runs = 0;
  int32_t task_members = 1;
  // kPagedPrefill on CUDA: what PlanAttention has decided. No array's place depends on it.
  int32_t num_tiles = 0;
  int32_t tile_tokens = 0;

  int32_t MaxChunks() const { return num_seqs + more_chunks; }
};

// A step: one token each of decode_rows sequences (row = slot of the sequence; a slot that does
// not decode is a padding row), then the new tokens of sequences that prefill.
struct StepShape {
  AttentionShape decode = {};
  AttentionShape prefill = {};
  int32_t logit_rows = 0;  // row = slot

  int64_t Tokens() const { return decode.num_tokens + prefill.num_tokens; }
};

struct AttentionArrays {
  int32_t* seq_chunk_indptr = nullptr;   // [num_seqs + 1]
  int32_t* seq_chunks = nullptr;         // [MaxChunks()] chunks, some of several sequences
  int32_t* chunk_lengths = nullptr;      // [MaxChunks()]
  int32_t* chunk_page_indptr = nullptr;  // [MaxChunks() + 1]
  int32_t* chunk_pages = nullptr;        // [max_pages]; last, as only its used part is copied
  // kPagedPrefill
  int32_t* q_indptr = nullptr;        // [num_seqs + 1]
  PagedPrefillTile* tiles = nullptr;  // [MaxPagedPrefillTiles()] of room
  std::byte* plan = nullptr;          // kChunkDecode on CUDA; with the room of DecodeRoomOf(shape)

  ChunkTableView Table(const AttentionShape& shape) const;
};

// T = Tokens(), of which the decode rows come first.
struct StepArrays {
  int32_t* prefill_ids = nullptr;   // [prefill.num_tokens]; decode rows take the sampled tokens
  int32_t* positions = nullptr;     // [T]
  int64_t* slots = nullptr;         // [T] of the KV cache; -1: padding
  int32_t* logit_tokens = nullptr;  // [logit_rows] rows of the step; -1: none
  SamplingRule* rules = nullptr;    // [logit_rows]
  AttentionArrays prefill;
  AttentionArrays decode;
  int64_t bytes = 0;  // of the block
};

// Lays the arrays of a step out from `base`; a null base only measures.
StepArrays PlaceStep(const StepShape& shape, std::byte* base);

// The most that a plan of chunk_decode takes for any table of a shape. A sequence has a task for
// each shared run and one for the rest. Shared runs are cut once per lane, and then what is read
// alone is. A cut adds a task with all members of what it cuts. A member has at most one partial
// state.
ChunkDecodePlanRoom DecodeRoomOf(const AttentionShape& shape);

// Writes the sequences of an attention launch one after the other into host arrays.
class TableWriter {
 public:
  TableWriter(const AttentionShape& shape, const AttentionArrays& arrays);

  // The next chunk of the sequence being written; `pages` hold `length` tokens. Returns its id.
  int32_t AddChunk(std::span<const int32_t> pages, int32_t length);
  // So of a chunk that an earlier sequence has added.
  void ListChunk(int32_t chunk);
  // The last `new_tokens` of the sequence are queries.
  void EndSequence(int32_t new_tokens);
  // A sequence of one chunk.
  void Add(std::span<const int32_t> pages, int32_t length, int32_t new_tokens);
  int64_t PagesUsed() const { return pages_; }

 private:
  AttentionShape shape_;
  AttentionArrays arrays_;
  int32_t seqs_ = 0;
  int32_t chunks_ = 0;
  int32_t listings_ = 0;  // of chunks, by all sequences
  int64_t pages_ = 0;
};

// Plans the launch from host arrays that a TableWriter has filled, and writes the plan into the
// arrays and the shape. Without a device (facts of 0 SMs) there is nothing to plan. `runs`: what
// the sequences of a kChunkDecode launch share. Returns whether the plan reads the runs once.
bool PlanAttention(AttentionShape& shape, const AttentionArrays& arrays,
                   const PagedKvLayout& layout, int32_t num_q_heads, const DeviceFacts& device,
                   std::span<const SharedRun> runs = {},
                   ChunkSharing sharing = ChunkSharing::kWhenItPays);

}  // namespace tokline
