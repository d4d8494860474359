// Causal attention of many new tokens per sequence (ragged batch) over paged KV, past and new.
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

// A tile of new tokens of one sequence, for one KV head: everything that a kernel has to know about
// it before walking the context.
struct alignas(16) PagedPrefillTile {
  int32_t q_begin;     // the tile's first token among all new tokens
  int16_t num_tokens;  // at most the plan's tile_tokens
  int16_t kv_head;
  int32_t kv_end;  // number of context tokens that the tile's last token sees
  // The walk begins in the sequence's first chunk, or in that of the tile's part.
  int32_t next_chunk;    // the chunk after it, as an index into seq_chunks
  int32_t chunk_length;  // its length
  int32_t page_begin;    // its first page, as an index into chunk_pages
  int32_t left;          // tiles that a block of kHopper processes from here on, including this one
  int32_t next;          // the one after it, or -1
};

// The part of its context that a tile of the plan walks where the context is cut. Each part of a
// query tile is a tile of the plan and leaves a state of each row in the workspace. A second kernel
// merges the states of each row in the order of the parts.
struct alignas(16) PagedPrefillPart {
  int32_t begin;        // context position of its first token, where a KV tile begins
  int32_t token;        // index of this token within its chunk
  int32_t end;          // context position after its last token
  int32_t first_state;  // of the query tile's first part, among the states of all parts
  int32_t index;        // among the query tile's parts
  int32_t count;        // of the query tile's parts
};

// PlanPagedPrefill makes the plan on the host. Tiles are in the order in which they should begin.
struct PagedPrefillPlan {
  int32_t tile_tokens = 0;  // new tokens of the largest tile
  int32_t num_blocks = 0;   // of kHopper; block b processes tile b first
  std::vector<PagedPrefillTile> tiles;
  std::vector<PagedPrefillPart> parts;  // of the first tiles; the others walk whole contexts
};

enum class PagedPrefillVariant : uint8_t {
  kAuto,      // kHopper if the device and the build support it, otherwise kPortable
  kPortable,  // mma.sync, sm_80 and newer
  kHopper,    // wgmma; needs compute capability 9.x and a build for sm_90a, rejected elsewhere
};

struct PagedPrefillParams {
  DType dtype = DType::kBf16;  // of q, kv and out
  int32_t num_q_heads = 0;     // a multiple of layout.num_kv_heads, at most 16 times it
  bool causal = true;          // new token i of n sees the first L - n + i + 1 of the L context
                               // tokens
  float scale = 0;
  PagedKvLayout layout = {};  // page ids >= num_pages do not exist; they may be read as zeros
  // Holds whole contexts including the new tokens, which are already appended. Shifts must be null
  // or 0. The pointers are host pointers for the reference and device pointers for CUDA.
  ChunkTableView table = {};

  int64_t total_tokens = 0;           // new tokens over all sequences
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1] new tokens; host or device like table. A
                                      // sequence has at most as many new tokens as context tokens
  const void* q = nullptr;            // [total_tokens, num_q_heads, head_dim], rows 16 B aligned
  int64_t q_stride = 0;               // elements between tokens
  const void* kv = nullptr;           // the layer's pool in the given layout, 16 B aligned
  void* out = nullptr;                // [total_tokens, num_q_heads, head_dim], rows 16 B aligned
  int64_t out_stride = 0;
  float* lse_ln = nullptr;  // [total_tokens, num_q_heads] natural log-sum-exp, or null. A row that
                            // sees nothing has out 0 and lse -inf.

  PagedPrefillVariant variant = PagedPrefillVariant::kAuto;  // CUDA only

  // CUDA only: the plan on the device, 16 B aligned. It must have been made from the table that is
  // on the device. The kernels read only seq_chunks and the arrays of the chunks from that table.
  // tile_tokens and the three counts fix grids and copies: a captured launch fits only plans with
  // the same four.
  int32_t tile_tokens = 0;
  int32_t num_blocks = 0;
  int32_t num_tiles = 0;
  const PagedPrefillTile* tiles = nullptr;  // [num_tiles]
  int32_t num_parts = 0;
  const PagedPrefillPart* parts = nullptr;  // [num_parts]
  void* workspace =
      nullptr;  // at least PagedPrefillWorkspaceBytes(), 16 B aligned; needs no values
  int64_t workspace_bytes = 0;
};

// Pure function. `table` and `q_indptr` are host arrays. Cuts contexts only if the time that it
// models falls clearly, into at most `max_parts` parts.
PagedPrefillPlan PlanPagedPrefill(const ChunkTableView& table, const int32_t* q_indptr,
                                  const PagedKvLayout& layout, int32_t num_q_heads, bool causal,
                                  const DeviceFacts& device, int32_t max_parts = 0);

// As many parts as a plan for this device can use.
constexpr int32_t MaxPagedPrefillParts(const DeviceFacts& device) { return 2 * device.sm_count; }

// The bytes of the workspace for this many parts.
int64_t PagedPrefillWorkspaceBytes(int32_t head_dim, int64_t num_parts);

// The largest number of tiles that a plan without parts can have for this many new tokens and
// sequences. With parts it may have as many more as there may be parts.
int64_t MaxPagedPrefillTiles(const PagedKvLayout& layout, int32_t num_q_heads, int64_t num_seqs,
                             int64_t num_tokens);

// Both throw InvalidArgument. ValidateLengths checks what depends on the contents of a host table.
void Validate(const PagedPrefillParams& params);
void ValidateLengths(const ChunkTableView& table, const int32_t* q_indptr,
                     const PagedKvLayout& layout, int64_t total_tokens);

// Needs a host table and host q_indptr.
Cost CostOf(const PagedPrefillParams& params);

void Launch(const PagedPrefillParams& params, const LaunchOptions& options);

}  // namespace tokline
