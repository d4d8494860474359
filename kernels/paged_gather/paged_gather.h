// Copies the paged KV of a ragged batch to contiguous K and V tensors.
#pragma once

#include <cstdint>

#include "kernels/common/chunk_table.h"
#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

// The table's shifts are ignored: rows are copied bit by bit.
struct PagedGatherParams {
  DType dtype = DType::kBf16;
  PagedKvLayout layout = {};
  ChunkTableView table = {};  // host pointers for the reference, device pointers for CUDA
  int64_t total_tokens = 0;   // over all sequences

  const int32_t* token_indptr = nullptr;  // [num_seqs + 1] first output row of each sequence; host
                                          // or device like table
  const void* kv = nullptr;               // the layer's pool in the given layout, 16 B aligned
  void* k_out = nullptr;  // [total_tokens, num_kv_heads, head_dim], contiguous, 16 B aligned
  void* v_out = nullptr;  // same
};

// Throws InvalidArgument. ValidateTokenRows checks host copies of the table and token_indptr.
void Validate(const PagedGatherParams& params);
void ValidateTokenRows(const ChunkTableView& table, const int32_t* token_indptr,
                       const PagedKvLayout& layout, int64_t total_tokens);

Cost CostOf(const PagedGatherParams& params);

void Launch(const PagedGatherParams& params, const LaunchOptions& options);

}  // namespace tokline
