// Looks up token embeddings and optionally adds learned position embeddings.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/dtype.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// out = table[id - first_id], or round(table[id - first_id] + position_table[position]).
struct EmbeddingParams {
  DType dtype = DType::kBf16;
  int64_t num_tokens = 0;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;             // rows must be a multiple of 16 B
  int64_t first_id = 0;                // of the table's first row
  const int32_t* token_ids = nullptr;  // [num_tokens] in [first_id, first_id + vocab_size); any
                                       // other id gives a row of zeros
  const void* table = nullptr;         // [vocab_size, hidden_size], 16 B aligned
  int64_t num_positions = 0;           // rows of position_table
  const int32_t* positions = nullptr;  // [num_tokens] in [0, num_positions); any other gives zeros
                                       // too
  const void* position_table = nullptr;  // [num_positions, hidden_size], 16 B aligned, or null
  void* out = nullptr;                   // [num_tokens, hidden_size], 16 B aligned
};

void Validate(const EmbeddingParams& params);
Cost CostOf(const EmbeddingParams& params);
void Launch(const EmbeddingParams& params, const LaunchOptions& options);

}  // namespace tokline
