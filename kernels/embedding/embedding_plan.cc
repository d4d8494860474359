#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/common/alignment.h"
#include "kernels/embedding/embedding.h"

namespace tokline {
namespace {

constexpr int64_t kVectorBytes = 16;

}  // namespace

void Validate(const EmbeddingParams& params) {
  const int64_t vector = kVectorBytes / SizeOf(params.dtype);
  Require(params.num_tokens >= 0, "num_tokens is ", params.num_tokens, "; it must be >= 0");
  Require(params.vocab_size >= 0 && params.vocab_size <= std::numeric_limits<int32_t>::max(),
          "vocab_size is ", params.vocab_size, "; it must be 0 to ",
          std::numeric_limits<int32_t>::max());
  Require(params.first_id >= 0 && params.first_id <= std::numeric_limits<int32_t>::max(),
          "first_id is ", params.first_id, "; it must be 0 to ",
          std::numeric_limits<int32_t>::max());
  Require(params.num_positions >= 0 && params.num_positions <= std::numeric_limits<int32_t>::max(),
          "num_positions is ", params.num_positions, "; it must be 0 to ",
          std::numeric_limits<int32_t>::max());
  Require((params.num_positions > 0) == (params.position_table != nullptr), "num_positions is ",
          params.num_positions, " with position_table ", params.position_table,
          "; give both or neither");
  Require(params.hidden_size >= vector && params.hidden_size % vector == 0, "hidden_size is ",
          params.hidden_size, "; it must be a positive multiple of ", vector, " (16 B)");
  constexpr int64_t kMaxElements = int64_t{1} << 45;  // keeps the number of vectors within the grid
  Require(params.num_tokens <= kMaxElements / params.hidden_size, "num_tokens ", params.num_tokens,
          " times hidden_size ", params.hidden_size, " exceeds ", kMaxElements, " elements");
  if (params.num_tokens == 0) return;
  Require(params.token_ids != nullptr, "token_ids is null with ", params.num_tokens, " tokens");
  if (params.vocab_size > 0) RequireTensor("table", params.table);
  if (params.position_table) {
    RequireTensor("position_table", params.position_table);
    Require(params.positions != nullptr, "positions is null, but position_table needs it");
  }
  RequireTensor("out", params.out);
}

Cost CostOf(const EmbeddingParams& params) {
  const double tokens = static_cast<double>(params.num_tokens);
  const double row_bytes = static_cast<double>(params.hidden_size * SizeOf(params.dtype));
  const double rows_read = std::min(tokens, static_cast<double>(params.vocab_size));
  Cost cost{.read_bytes = tokens * sizeof(int32_t)  // token_ids
                          + rows_read * row_bytes,  // one table row per token, as if ids were
                                                    // distinct
            .write_bytes = tokens * row_bytes,
            .flops = 0};
  if (params.position_table) {
    cost.read_bytes += tokens * sizeof(int32_t)  // positions
                       + std::min(tokens, static_cast<double>(params.num_positions)) * row_bytes;
    cost.flops = tokens * static_cast<double>(params.hidden_size);
  }
  return cost;
}

}  // namespace tokline
