// Creates batches of sequences over a shuffled paged KV pool, and samples of them.
#include "benches/paged_batch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>
#include <unordered_map>

#include "benches/bench_case.h"
#include "harness/platform/process_memory.h"
#include "kernels/common/error.h"

namespace tokline::bench {

int64_t PagedBatch::SequenceLength(int64_t seq) const {
  int64_t length = 0;
  for (const int32_t chunk : seq_chunks[static_cast<size_t>(seq)]) {
    length += chunk_lengths[static_cast<size_t>(chunk)];
  }
  return length;
}

std::vector<int64_t> PagedBatch::SequenceLengths() const {
  std::vector<int64_t> lengths;
  for (int64_t seq = 0; seq < NumSeqs(); ++seq) lengths.push_back(SequenceLength(seq));
  return lengths;
}

ChunkTable PagedBatch::Table() const {
  ChunkTable table;
  for (size_t c = 0; c < chunk_pages.size(); ++c) {
    table.AddChunk(chunk_pages[c], chunk_lengths[c]);
  }
  for (const std::vector<int32_t>& chunks : seq_chunks) table.AddSequence(chunks);
  return table;
}

PagedBatch ShuffledBatch(const PagedKvLayout& pageless, const std::vector<int64_t>& chunk_lengths,
                         std::vector<std::vector<int32_t>> seq_chunks) {
  PagedBatch batch{.layout = pageless, .seq_chunks = std::move(seq_chunks)};
  for (const int64_t length : chunk_lengths) {
    batch.layout.num_pages += pageless.PagesFor(length);
  }
  const std::vector<int32_t> pages = ShuffledIds(batch.layout.num_pages);
  auto next = pages.begin();
  for (const int64_t length : chunk_lengths) {
    const auto end = next + pageless.PagesFor(length);
    batch.chunk_pages.emplace_back(next, end);
    batch.chunk_lengths.push_back(static_cast<int32_t>(length));
    next = end;
  }
  return batch;
}

PagedBatch ShuffledBatch(const PagedKvLayout& pageless, const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> seq_chunks;
  for (size_t i = 0; i < lengths.size(); ++i) seq_chunks.push_back({static_cast<int32_t>(i)});
  return ShuffledBatch(pageless, lengths, std::move(seq_chunks));
}

PagedSample SamplePrefixes(const PagedBatch& whole, const std::vector<Prefix>& prefixes,
                           const std::vector<int64_t>& kv_heads) {
  PagedSample sample;
  std::unordered_map<int32_t, int32_t> renumbered;
  std::vector<int64_t> pages;
  for (const Prefix& prefix : prefixes) {
    int64_t left = prefix.length;
    std::vector<int32_t>& chunks = sample.batch.seq_chunks.emplace_back();
    for (const int32_t chunk : whole.seq_chunks[static_cast<size_t>(prefix.seq)]) {
      const int64_t length =
          std::min<int64_t>(left, whole.chunk_lengths[static_cast<size_t>(chunk)]);
      left -= length;
      std::vector<int32_t>& chunk_pages = sample.batch.chunk_pages.emplace_back();
      for (int64_t i = 0; i < whole.layout.PagesFor(length); ++i) {
        const int32_t page = whole.chunk_pages[static_cast<size_t>(chunk)][static_cast<size_t>(i)];
        const auto [entry, added] =
            renumbered.try_emplace(page, static_cast<int32_t>(pages.size()));
        if (added) pages.push_back(page);
        chunk_pages.push_back(entry->second);
      }
      chunks.push_back(static_cast<int32_t>(sample.batch.chunk_lengths.size()));
      sample.batch.chunk_lengths.push_back(static_cast<int32_t>(length));
    }
  }
  sample.batch.layout = whole.layout;
  sample.batch.layout.num_pages = static_cast<int64_t>(pages.size());
  sample.batch.layout.num_kv_heads = static_cast<int32_t>(kv_heads.size());
  sample.pool_rows = PoolRowsOf(whole.layout, pages, kv_heads);
  return sample;
}

std::vector<int64_t> PoolRowsOf(const PagedKvLayout& whole, const std::vector<int64_t>& pages,
                                const std::vector<int64_t>& kv_heads) {
  PagedKvLayout part = whole;
  part.num_pages = static_cast<int64_t>(pages.size());
  part.num_kv_heads = static_cast<int32_t>(kv_heads.size());
  std::vector<int64_t> rows(static_cast<size_t>(part.NumElements() / part.head_dim));
  for (int64_t p = 0; p < part.num_pages; ++p) {
    const int64_t page = pages[static_cast<size_t>(p)];
    for (int32_t h = 0; h < part.num_kv_heads; ++h) {
      const auto head = static_cast<int32_t>(kv_heads[static_cast<size_t>(h)]);
      for (int32_t row = 0; row < part.page_size; ++row) {
        const auto at = [&](int64_t offset) { return static_cast<size_t>(offset / part.head_dim); };
        rows[at(part.KeyOffset(p, h, row))] = whole.KeyOffset(page, head, row) / part.head_dim;
        rows[at(part.ValueOffset(p, h, row))] = whole.ValueOffset(page, head, row) / part.head_dim;
      }
    }
  }
  return rows;
}

TableTensors::TableTensors(TensorList& tensors, const ChunkTable& table) {
  const ChunkTableView view = table.View();
  const auto list = [](const int32_t* data, int64_t count) {
    return std::vector<int32_t>(data, data + count);
  };
  num_seqs_ = view.num_seqs;
  num_chunks_ = view.num_chunks;
  seq_chunk_indptr_ = tensors.Table(list(view.seq_chunk_indptr, num_seqs_ + 1));
  seq_chunks_ = tensors.Table(list(view.seq_chunks, view.seq_chunk_indptr[num_seqs_]));
  chunk_page_indptr_ = tensors.Table(list(view.chunk_page_indptr, num_chunks_ + 1));
  chunk_pages_ = tensors.Table(list(view.chunk_pages, view.chunk_page_indptr[num_chunks_]));
  chunk_lengths_ = tensors.Table(list(view.chunk_lengths, num_chunks_));
}

ChunkTableView TableTensors::Bind(const TensorSet& set) const {
  return {.num_seqs = num_seqs_,
          .num_chunks = num_chunks_,
          .seq_chunk_indptr = set.At<int32_t>(seq_chunk_indptr_),
          .seq_chunks = set.At<int32_t>(seq_chunks_),
          .chunk_page_indptr = set.At<int32_t>(chunk_page_indptr_),
          .chunk_pages = set.At<int32_t>(chunk_pages_),
          .chunk_lengths = set.At<int32_t>(chunk_lengths_)};
}

std::vector<int32_t> PrefixSums(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> sums{0};
  for (const int64_t length : lengths) sums.push_back(sums.back() + static_cast<int32_t>(length));
  return sums;
}

std::vector<int32_t> ShuffledIds(int64_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937_64 rng(7);
  std::shuffle(ids.begin(), ids.end(), rng);
  return ids;
}

std::vector<int32_t> DistinctIds(int64_t count, int64_t n) {
  const std::vector<int32_t> shuffled = ShuffledIds(n);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(shuffled[static_cast<size_t>(i % n)]);
  return ids;
}

std::vector<float> RopeTable(int64_t rows, int32_t head_dim) {
  constexpr double kBase = 1e6;
  // A case holds a second copy.
  const int64_t bytes = 2 * rows * head_dim * int64_t{sizeof(float)};
  Require(bytes <= AvailableHostBytes(), "the tables of RoPE angles take ", bytes, " bytes; ",
          AvailableHostBytes(), " are free");
  std::vector<float> table;
  table.reserve(static_cast<size_t>(rows * head_dim));
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t i = 0; i < head_dim / 2; ++i) {
      const double angle = static_cast<double>(row) * std::pow(kBase, -2.0 * i / head_dim);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

std::vector<int64_t> HeadRows(const std::vector<int64_t>& items, int64_t num_heads,
                              const std::vector<int64_t>& heads) {
  std::vector<int64_t> rows;
  rows.reserve(items.size() * heads.size());
  for (const int64_t item : items) {
    for (const int64_t head : heads) rows.push_back(item * num_heads + head);
  }
  return rows;
}

std::vector<int64_t> PickSequences(std::span<const int64_t> lengths, int64_t count, uint64_t seed) {
  std::vector<int64_t> seqs;
  for (int64_t seq = 0; seq < std::ssize(lengths); ++seq) {
    if (lengths[static_cast<size_t>(seq)] > 0) seqs.push_back(seq);
  }
  std::vector<int64_t> picked = PickIndices(std::ssize(seqs), count, seed);
  for (int64_t& seq : picked) seq = seqs[static_cast<size_t>(seq)];
  return picked;
}

std::vector<int64_t> PickKvHead(int32_t num_kv_heads, uint64_t seed) {
  return {static_cast<int64_t>(seed % static_cast<uint64_t>(num_kv_heads))};
}

}  // namespace tokline::bench
