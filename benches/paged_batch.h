// Sequences over a paged KV pool for bench cases: page lists, and a sample of a few sequences and
// heads with the rows of the pool that it needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "benches/tensors.h"
#include "kernels/common/chunk_table.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline::bench {

// Sequences over a pool. The pool's rows have head_dim elements and are in the order of the layout.
struct PagedBatch {
  PagedKvLayout layout{};
  std::vector<std::vector<int32_t>> chunk_pages{};
  std::vector<int32_t> chunk_lengths{};
  std::vector<std::vector<int32_t>> seq_chunks{};

  int64_t NumSeqs() const { return static_cast<int64_t>(seq_chunks.size()); }
  int64_t PoolRows() const { return layout.NumElements() / layout.head_dim; }
  int64_t SequenceLength(int64_t seq) const;
  std::vector<int64_t> SequenceLengths() const;
  ChunkTable Table() const;
};

// Chunks of these lengths on pages that are shuffled over a pool of exactly the needed size, in
// this layout.
PagedBatch ShuffledBatch(const PagedKvLayout& pageless, const std::vector<int64_t>& chunk_lengths,
                         std::vector<std::vector<int32_t>> seq_chunks);

// One chunk per sequence.
PagedBatch ShuffledBatch(const PagedKvLayout& pageless, const std::vector<int64_t>& lengths);

// The first `length` tokens of sequence `seq`.
struct Prefix {
  int64_t seq;
  int64_t length;
};

struct PagedSample {
  // one sequence per prefix, on a pool of only their pages and heads
  PagedBatch batch;
  std::vector<int64_t> pool_rows;  // for each row of the sample, its row in the whole pool
};

PagedSample SamplePrefixes(const PagedBatch& whole, const std::vector<Prefix>& prefixes,
                           const std::vector<int64_t>& kv_heads);

// The rows of the whole pool that make up a pool of these pages and heads.
std::vector<int64_t> PoolRowsOf(const PagedKvLayout& whole, const std::vector<int64_t>& pages,
                                const std::vector<int64_t>& kv_heads);

// A chunk table as tensors of a case.
class TableTensors {
 public:
  TableTensors() = default;
  TableTensors(TensorList& tensors, const ChunkTable& table);
  ChunkTableView Bind(const TensorSet& set) const;

 private:
  int32_t num_seqs_ = 0;
  int32_t num_chunks_ = 0;
  int seq_chunk_indptr_ = -1;
  int seq_chunks_ = -1;
  int chunk_page_indptr_ = -1;
  int chunk_pages_ = -1;
  int chunk_lengths_ = -1;
};

// [0, l0, l0 + l1, ...]
std::vector<int32_t> PrefixSums(const std::vector<int64_t>& lengths);

// Ids 0 .. n - 1 in a fixed random order.
std::vector<int32_t> ShuffledIds(int64_t n);
// `count` of these ids. They are distinct unless n is smaller; then they start again from the
// first.
std::vector<int32_t> DistinctIds(int64_t count, int64_t n);

// cos, sin pairs of RoPE angles, [rows, head_dim / 2], base 1e6.
std::vector<float> RopeTable(int64_t rows, int32_t head_dim);

// Rows (item, head) of tensors [items, num_heads, head_dim] for these items and heads.
std::vector<int64_t> HeadRows(const std::vector<int64_t>& items, int64_t num_heads,
                              const std::vector<int64_t>& heads);

// PickIndices among the sequences that have tokens; `lengths` holds the numbers of tokens.
std::vector<int64_t> PickSequences(std::span<const int64_t> lengths, int64_t count, uint64_t seed);

// A list of one of the KV heads.
std::vector<int64_t> PickKvHead(int32_t num_kv_heads, uint64_t seed);

}  // namespace tokline::bench
