#include "kernels/paged_gather/paged_gather_plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/common/alignment.h"
#include "kernels/common/error.h"

namespace tokline {

void Validate(const PagedGatherParams& params) {
  Validate(params.layout);
  const ChunkTableView& table = params.table;
  Require(table.num_seqs >= 0 && table.num_chunks >= 0, "chunk table has num_seqs ", table.num_seqs,
          " and num_chunks ", table.num_chunks, "; both must be >= 0");
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();  // token_indptr is int32
  Require(params.total_tokens >= 0 && params.total_tokens <= kMaxTokens, "total_tokens is ",
          params.total_tokens, "; it must be 0 to ", kMaxTokens);
  if (params.total_tokens == 0) return;
  Require(table.num_seqs >= 1 && table.num_chunks >= 1, "total_tokens is ", params.total_tokens,
          ", but the table has ", table.num_seqs, " sequences and ", table.num_chunks, " chunks");
  Require(table.seq_chunk_indptr && table.seq_chunks && table.chunk_page_indptr &&
              table.chunk_pages && table.chunk_lengths,
          "the chunk table lacks an array with ", params.total_tokens, " tokens");
  Require(params.token_indptr != nullptr, "token_indptr is null");
  RequireTensor("kv", params.kv);
  RequireTensor("k_out", params.k_out);
  RequireTensor("v_out", params.v_out);
}

void ValidateTokenRows(const ChunkTableView& table, const int32_t* token_indptr,
                       const PagedKvLayout& layout, int64_t total_tokens) {
  Validate(table, layout);
  Require(token_indptr[0] == 0, "token_indptr[0] is ", token_indptr[0], "; it must be 0");
  for (int32_t s = 0; s < table.num_seqs; ++s) {
    const int64_t rows = int64_t{token_indptr[s + 1]} - token_indptr[s];
    Require(rows == SequenceLength(table, s), "token_indptr gives sequence ", s, " ", rows,
            " rows; its chunks hold ", SequenceLength(table, s), " tokens");
  }
  Require(token_indptr[table.num_seqs] == total_tokens, "token_indptr ends at ",
          token_indptr[table.num_seqs], "; total_tokens is ", total_tokens);
}

Cost CostOf(const PagedGatherParams& params) {
  const PagedKvLayout& layout = params.layout;
  const double kv_bytes = static_cast<double>(params.total_tokens) * 2 * layout.num_kv_heads *
                          layout.head_dim * static_cast<double>(SizeOf(params.dtype));
  Cost cost;
  cost.read_bytes += kv_bytes;  // each token's K and V rows; shared chunks count once per reader
  // The smallest table that can hold the tokens: full pages, with one int32 id per page.
  const auto pages = static_cast<double>(layout.PagesFor(params.total_tokens));
  if (params.total_tokens > 0) cost.read_bytes += pages * sizeof(int32_t);
  cost.write_bytes += kv_bytes;
  return cost;
}

int32_t GatherTileTokens(const PagedGatherParams& params) {
  constexpr int64_t kTileBytes = 32 * 1024;
  const int64_t token_bytes =
      2 * int64_t{params.layout.num_kv_heads} * params.layout.head_dim * SizeOf(params.dtype);
  const auto tokens = static_cast<uint64_t>(std::max<int64_t>(kTileBytes / token_bytes, 1));
  return std::min(static_cast<int32_t>(std::bit_floor(tokens)), kMaxGatherTileTokens);
}

}  // namespace tokline
