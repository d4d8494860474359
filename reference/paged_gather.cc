#include "reference/paged_gather.h"

#include <cstring>

namespace tokline {

void PagedGatherReference(const PagedGatherParams& params) {
  Validate(params);
  if (params.total_tokens == 0) return;
  const PagedKvLayout& layout = params.layout;
  const ChunkTableView& table = params.table;
  ValidateTokenRows(table, params.token_indptr, layout, params.total_tokens);

  const int64_t row_bytes = layout.head_dim * SizeOf(params.dtype);
  const auto copy_row = [&](void* out, int64_t out_row, int64_t kv_offset) {
    std::memcpy(static_cast<char*>(out) + out_row * row_bytes,
                static_cast<const char*>(params.kv) + kv_offset * SizeOf(params.dtype),
                static_cast<size_t>(row_bytes));
  };
  int64_t token = 0;
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    for (int32_t i = table.seq_chunk_indptr[s]; i < table.seq_chunk_indptr[s + 1]; ++i) {
      const int32_t chunk = table.seq_chunks[i];
      const int32_t* pages = table.chunk_pages + table.chunk_page_indptr[chunk];
      for (int32_t t = 0; t < table.chunk_lengths[chunk]; ++t, ++token) {
        const int64_t page = pages[layout.Pages().PageOf(t)];
        const int32_t row = layout.Pages().RowOf(t);
        for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
          const int64_t out_row = token * layout.num_kv_heads + h;
          copy_row(params.k_out, out_row, layout.KeyOffset(page, h, row));
          copy_row(params.v_out, out_row, layout.ValueOffset(page, h, row));
        }
      }
    }
  }
}

}  // namespace tokline
