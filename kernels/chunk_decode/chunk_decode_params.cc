// Checks parameters, lays out the workspace, and counts the minimum that a call must move and
// compute.
#include "kernels/chunk_decode/chunk_decode_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "kernels/chunk_decode/chunk_decode.h"
#include "kernels/common/alignment.h"
#include "kernels/common/rounding.h"

namespace tokline {

int32_t GroupOf(int32_t num_q_heads, const PagedKvLayout& layout) {
  Require(num_q_heads > 0 && num_q_heads % layout.num_kv_heads == 0 &&
              num_q_heads / layout.num_kv_heads <= 16,
          "num_q_heads is ", num_q_heads, "; it must be 1 to 16 times num_kv_heads, which is ",
          layout.num_kv_heads);
  return num_q_heads / layout.num_kv_heads;
}

ChunkDecodeWorkspace ChunkDecodeWorkspaceLayout(int32_t num_seqs, int64_t max_partials,
                                                int32_t num_q_heads, const PagedKvLayout& layout) {
  const int64_t rows = max_partials * num_q_heads;
  ChunkDecodeWorkspace workspace;
  workspace.max_sum = workspace.counters + ChunkDecodeCounterBytes(num_seqs, layout);
  workspace.outputs =
      workspace.max_sum + RoundUp(rows * 2 * int64_t{sizeof(float)}, kChunkDecodeAlignment);
  workspace.bytes = workspace.outputs +
                    RoundUp(rows * layout.head_dim * int64_t{sizeof(float)}, kChunkDecodeAlignment);
  return workspace;
}

int64_t ChunkDecodeCounterBytes(int32_t num_seqs, const PagedKvLayout& layout) {
  const int64_t counters = int64_t{num_seqs} * layout.num_kv_heads * (1 + kChunkDecodeBundles);
  return RoundUp(counters * int64_t{sizeof(uint32_t)}, kChunkDecodeAlignment);
}

int64_t ChunkDecodeWorkspaceBytes(int32_t num_seqs, int64_t max_partials, int32_t num_q_heads,
                                  const PagedKvLayout& layout) {
  return ChunkDecodeWorkspaceLayout(num_seqs, max_partials, num_q_heads, layout).bytes;
}

void Validate(const ChunkDecodeParams& params) {
  Validate(params.layout);
  const PagedKvLayout& layout = params.layout;
  GroupOf(params.num_q_heads, layout);
  Require(std::isfinite(params.scale) && params.scale > 0, "scale is ", params.scale,
          "; it must be finite and > 0");
  Require(params.table.num_seqs >= 0, "num_seqs is ", params.table.num_seqs, "; it must be >= 0");
  const int64_t width = int64_t{params.num_q_heads} * layout.head_dim;
  Require(params.q_stride >= width && params.q_stride % 8 == 0, "q_stride is ", params.q_stride,
          "; it must be a multiple of 8 and at least num_q_heads * head_dim = ", width);
  Require(params.out_stride >= width && params.out_stride % 8 == 0, "out_stride is ",
          params.out_stride,
          "; it must be a multiple of 8 and at least num_q_heads * head_dim = ", width);
  if (params.table.num_seqs == 0) return;
  RequireTensor("q", params.q);
  RequireTensor("out", params.out);
  Require(params.kv || layout.num_pages == 0, "kv is null but the pool has ", layout.num_pages,
          " pages");
  RequireAligned("kv", params.kv);
  Require((params.rope_cos_sin == nullptr) == (params.rope_rows == 0), "rope_rows is ",
          params.rope_rows, " with rope_cos_sin ", params.rope_cos_sin, "; give both or neither");
}

void ValidateShifts(const ChunkTableView& table, const PagedKvLayout& layout, int64_t rope_rows) {
  Validate(table, layout);
  const int64_t most = std::max<int64_t>(rope_rows - 1, 0);  // without a table: 0
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s];
         table.seq_shifts != nullptr && i < table.seq_chunk_indptr[s + 1]; ++i) {
      const int64_t shift = table.seq_shifts[i];
      Require(std::abs(shift) <= most, "sequence ", s, " has shift ", shift, " on chunk ",
              table.seq_chunks[i], "; with ", rope_rows, " rope_rows it must be ", -most, " to ",
              most);
    }
  }
}

Cost CostOf(const ChunkDecodeParams& params) {
  const ChunkTableView& table = params.table;
  const double element = static_cast<double>(SizeOf(params.dtype));
  const double head_dim = params.layout.head_dim;
  const double query_elements = double(table.num_seqs) * params.num_q_heads * head_dim;
  std::vector<bool> listed(static_cast<size_t>(table.num_chunks), false);
  double context_tokens = 0, distinct_tokens = 0;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      context_tokens += table.chunk_lengths[chunk];
      if (!listed[static_cast<size_t>(chunk)]) distinct_tokens += table.chunk_lengths[chunk];
      listed[static_cast<size_t>(chunk)] = true;
    }
  }
  Cost cost;
  cost.read_bytes = query_elements * element;                                                // q
  cost.read_bytes += distinct_tokens * params.layout.num_kv_heads * 2 * head_dim * element;  // K, V
  cost.write_bytes = query_elements * element;                                               // out
  if (params.lse_ln) cost.write_bytes += double(table.num_seqs) * params.num_q_heads * 4;    // lse
  cost.flops = 4 * context_tokens * params.num_q_heads * head_dim;  // q k and p v
  return cost;
}

}  // namespace tokline
