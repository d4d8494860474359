// Creates batches of tokens to append to a paged KV pool, and samples of whole pages of them.
#include "benches/append_batch.h"

#include <algorithm>

#include "benches/bench_case.h"
#include "benches/paged_batch.h"

namespace tokline::bench {

AppendBatch OneSequence(const PagedKvLayout& pageless, int64_t num_tokens) {
  AppendBatch batch{.layout = pageless};
  const PageSplit split = pageless.Pages();
  batch.layout.num_pages = pageless.PagesFor(num_tokens);
  const std::vector<int32_t> pages = ShuffledIds(batch.layout.num_pages);
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int32_t page = pages[static_cast<size_t>(split.PageOf(i))];
    batch.slots.push_back(split.SlotOf(page, split.RowOf(i)));
    batch.positions.push_back(static_cast<int32_t>(i));
  }
  return batch;
}

AppendBatch ManySequences(const PagedKvLayout& pageless, int64_t num_tokens) {
  AppendBatch batch{.layout = pageless};
  const PageSplit split = pageless.Pages();
  batch.layout.num_pages = num_tokens;
  const std::vector<int32_t> pages = ShuffledIds(num_tokens);
  for (int64_t i = 0; i < num_tokens; ++i) {
    batch.slots.push_back(split.SlotOf(pages[static_cast<size_t>(i)], split.RowOf(i)));
    batch.positions.push_back(static_cast<int32_t>(i));
  }
  return batch;
}

AppendSample SamplePages(const AppendBatch& whole, const std::vector<int64_t>& kv_heads,
                         uint64_t seed) {
  constexpr int64_t kPages = 4;
  AppendSample sample;
  const PageSplit split = whole.layout.Pages();
  std::vector<int64_t> pages = PickIndices(whole.layout.num_pages, kPages, seed);
  for (const int64_t slot : {whole.slots.front(), whole.slots.back()}) {
    pages.push_back(split.PageOf(slot));
  }
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  sample.batch.layout = whole.layout;
  sample.batch.layout.num_pages = static_cast<int64_t>(pages.size());
  sample.batch.layout.num_kv_heads = static_cast<int32_t>(kv_heads.size());
  for (int64_t token = 0; token < whole.NumTokens(); ++token) {
    const int64_t slot = whole.slots[static_cast<size_t>(token)];
    const auto page = std::lower_bound(pages.begin(), pages.end(), split.PageOf(slot));
    if (page == pages.end() || *page != split.PageOf(slot)) continue;
    sample.tokens.push_back(token);
    sample.batch.slots.push_back(split.SlotOf(page - pages.begin(), split.RowOf(slot)));
    sample.batch.positions.push_back(whole.positions[static_cast<size_t>(token)]);
  }
  sample.pool_rows = PoolRowsOf(whole.layout, pages, kv_heads);
  return sample;
}

}  // namespace tokline::bench
