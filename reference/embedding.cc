#include "reference/embedding.h"

#include <cstring>

#include "reference/elements.h"

namespace tokline {

void EmbeddingReference(const EmbeddingParams& params) {
  Validate(params);
  const int64_t row_bytes = params.hidden_size * SizeOf(params.dtype);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    const int64_t id = params.token_ids[t] - params.first_id;
    char* out = static_cast<char*>(params.out) + t * row_bytes;
    const int64_t position = params.position_table ? params.positions[t] : 0;
    const bool placed =
        !params.position_table || (position >= 0 && position < params.num_positions);
    if (id < 0 || id >= params.vocab_size || !placed) {
      std::memset(out, 0, static_cast<size_t>(row_bytes));
    } else if (params.position_table) {
      for (int64_t i = 0; i < params.hidden_size; ++i) {
        const double word = LoadElement(params.dtype, params.table, id * params.hidden_size + i);
        const double place =
            LoadElement(params.dtype, params.position_table, position * params.hidden_size + i);
        StoreElement(params.dtype, out, i, word + place);
      }
    } else {
      std::memcpy(out, static_cast<const char*>(params.table) + id * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

}  // namespace tokline
