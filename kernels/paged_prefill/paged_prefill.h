// Causal attention of many new tokens a sequence (ragged batch) over paged KV: past and new.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/chunk_table.h"
#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// A tile of new tokens of one sequence: all that a kernel has to know of it before it walks the
// context.
struct alignas(16) PagedPrefillTile {
  int32_t q_begin;       // its first token among all new tokens
  int32_t num_tokens;    // at most the plan's tile_tokens
  int32_t kv_end;        // context tokens that the last of them sees
  int32_t next_chunk;    // the sequence's second, as an index into seq_chunks
  int32_t chunk_length;  // of the first
  int32_t page_begin;    // of the first, as an index into chunk_pages
};

// Longest tiles first. Made on the host by PlanPagedPrefill.
struct PagedPrefillPlan {
  int32_t tile_tokens = 0;  // new tokens a tile covers
  std::vector<PagedPrefillTile> tiles;
};

enum class PagedPrefillVariant : uint8_t {
  kAuto,      // kHopper where the device and the build have it
  kPortable,  // mma.sync, sm_80 and up
  kHopper,    // wgmma, compute capability 9.x and a build for sm_90a; refused elsewhere
};

struct PagedPrefillParams {
  DType dtype = DType::kBf16;  // of q, kv and out
  int32_t num_q_heads = 0;     // a multiple of layout.num_kv_heads, at most 16 times it
  bool causal = true;          // new token i of n, context length L, sees the first L - n + i + 1
  float scale = 0;
  PagedKvLayout layout = {};  // pages from num_pages on are none: they may be read as zeros
  // Whole contexts, new tokens included (already appended); shifts must be null or 0. Host pointers
  // for the reference, device pointers for CUDA.
  ChunkTableView table = {};

  int64_t total_tokens = 0;           // new tokens over all sequences
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1] new tokens; host or device like table. A
                                      // sequence has at most as many as its context
  const void* q = nullptr;            // [total_tokens, num_q_heads, head_dim], rows 16 B aligned
  int64_t q_stride = 0;               // elements between tokens
  const void* kv = nullptr;           // the layer's pool, as layout says, 16 B aligned
  void* out = nullptr;                // [total_tokens, num_q_heads, head_dim], rows 16 B aligned
  int64_t out_stride = 0;
  float* lse_ln = nullptr;  // [total_tokens, num_q_heads] natural log-sum-exp, or null. A row that
                            // sees nothing: out 0, lse -inf.

  PagedPrefillVariant variant = PagedPrefillVariant::kAuto;  // CUDA only

  // CUDA only: the plan on the device, 16 B aligned. Made of the table that stands there, of which
  // the kernels read no more than seq_chunks and what belongs to the chunks.
  int32_t tile_tokens = 0;
  int32_t num_tiles = 0;
  const PagedPrefillTile* tiles = nullptr;  // [num_tiles]
};

// Pure. `table` and `q_indptr` are host arrays.
PagedPrefillPlan PlanPagedPrefill(const ChunkTableView& table, const int32_t* q_indptr,
                                  const PagedKvLayout& layout, int32_t num_q_heads, bool causal);

// The most tiles that a plan for so many new tokens of so many sequences may have.
int64_t MaxPagedPrefillTiles(int64_t num_seqs, int64_t num_tokens);

// Throws InvalidArgument. ValidateLengths checks what depends on host table contents.
void Validate(const PagedPrefillParams& params);
void ValidateLengths(const ChunkTableView& table, const int32_t* q_indptr,
                     const PagedKvLayout& layout, int64_t total_tokens);

// Needs a host table and host q_indptr.
Cost CostOf(const PagedPrefillParams& params);

void Launch(const PagedPrefillParams& params, const LaunchOptions& options);

}  // namespace tokline
