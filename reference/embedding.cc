#include "reference/embedding.h"

#include <cstring>

namespace tokline {

void EmbeddingReference(const EmbeddingParams& params) {
  Validate(params);
  const int64_t row_bytes = params.hidden_size * SizeOf(params.dtype);
  for (int64_t t = 0; t < params.num_tokens; ++t) {
    const int64_t id = params.token_ids[t];
    char* out = static_cast<char*>(params.out) + t * row_bytes;
    if (id < 0 || id >= params.vocab_size) {
      std::memset(out, 0, static_cast<size_t>(row_bytes));
    } else {
      std::memcpy(out, static_cast<const char*>(params.table) + id * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

}  // namespace tokline
