// New tokens and the slots of a paged pool that they are appended to.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/paged_kv_layout.h"

namespace tokline::bench {

struct AppendBatch {
  PagedKvLayout layout{};
  std::vector<int64_t> slots{};
  std::vector<int32_t> positions{};  // of the tokens in their sequences

  int64_t NumTokens() const { return static_cast<int64_t>(slots.size()); }
  int64_t PoolRows() const { return layout.NumElements() / layout.head_dim; }
};

// Tokens 0 .. n - 1 of one sequence, on shuffled pages.
AppendBatch OneSequence(const PagedKvLayout& pageless, int64_t num_tokens);
// One token each of n sequences, every one on its own page.
AppendBatch ManySequences(const PagedKvLayout& pageless, int64_t num_tokens);

// All tokens that fall on a few of the pages. Those pages' other rows stay unwritten in the whole
// problem too, which a comparison of whole pages proves.
struct AppendSample {
  AppendBatch batch;
  std::vector<int64_t> tokens;     // of the whole batch
  std::vector<int64_t> pool_rows;  // the whole pool's row of each of its rows
};
// Of the pool's heads it has `kv_heads`.
AppendSample SamplePages(const AppendBatch& whole, const std::vector<int64_t>& kv_heads,
                         uint64_t seed);

}  // namespace tokline::bench
