// New tokens and the slots of a paged pool to which they are appended.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/paged_kv_layout.h"

namespace tokline::bench {

struct AppendBatch {
  PagedKvLayout layout{};
  std::vector<int64_t> slots{};
  std::vector<int32_t> positions{};  // positions of the tokens in their sequences

  int64_t NumTokens() const { return static_cast<int64_t>(slots.size()); }
  int64_t PoolRows() const { return layout.NumElements() / layout.head_dim; }
};

// Tokens 0 .. n - 1 of one sequence, on shuffled pages.
AppendBatch OneSequence(const PagedKvLayout& pageless, int64_t num_tokens);
// One token for each of n sequences, each on its own page. Token i is at position i of its
// sequence, so that every token has a row of RoPE angles to itself, as CostOf counts them.
AppendBatch ManySequences(const PagedKvLayout& pageless, int64_t num_tokens);

// All tokens that fall on a few of the pages. The other rows of those pages stay unwritten in the
// whole problem too, so whole pages can be compared.
struct AppendSample {
  AppendBatch batch;
  std::vector<int64_t> tokens;     // of the whole batch
  std::vector<int64_t> pool_rows;  // for each row of the sample, its row in the whole pool
};
// The sample contains only `kv_heads` of the pool's heads.
AppendSample SamplePages(const AppendBatch& whole, const std::vector<int64_t>& kv_heads,
                         uint64_t seed);

}  // namespace tokline::bench
