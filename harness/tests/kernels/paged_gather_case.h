// A gather problem on the host, shared by the CPU and the CUDA tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/paged_gather/paged_gather.h"

namespace tokline::testing {

struct PagedGatherShape {
  DType dtype = DType::kBf16;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  KvOrder order = KvOrder::kHnd;
  // The chunk lengths of each sequence; a negative number -c - 1 means that chunk c is shared.
  std::vector<std::vector<int32_t>> sequences = {{5, 16, 33}, {}, {0, 17, -2}, {1}, {0}, {40}};
  uint64_t seed = 1;  // determines the order of the pages
};

// Chunks get shuffled pages, one more than they need. The contents of a token's rows depend only on
// its chunk and position, not on its page; all other slots hold NaN.
struct PagedGatherCase {
  explicit PagedGatherCase(const PagedGatherShape& s)
      : shape(s), pool(s.dtype, 0), k_out(s.dtype, 0), v_out(s.dtype, 0) {
    int32_t num_pages = 1;
    for (const auto& sequence : s.sequences) {
      for (const int32_t length : sequence) num_pages += length < 0 ? 0 : PagesOf(length);
    }
    layout = {.num_pages = num_pages,
              .num_kv_heads = s.num_kv_heads,
              .page_size = s.page_size,
              .head_dim = s.head_dim,
              .order = s.order};
    std::vector<int32_t> pages(static_cast<size_t>(num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::mt19937_64 rng(s.seed);
    std::shuffle(pages.begin(), pages.end(), rng);
    pool = HostTensor(s.dtype, layout.NumElements());
    pool.FillNan();

    token_indptr.push_back(0);
    for (const auto& sequence : s.sequences) {
      std::vector<int32_t> chunks;
      int32_t tokens = 0;
      for (const int32_t length : sequence) {
        if (length < 0) {
          chunks.push_back(-length - 1);
        } else {
          const std::vector<int32_t> own(pages.end() - PagesOf(length), pages.end());
          pages.resize(pages.size() - own.size());
          chunks.push_back(table.AddChunk(own, length));
          chunk_lengths.push_back(length);
          FillChunk(chunks.back(), own, length);
        }
        tokens += chunk_lengths[static_cast<size_t>(chunks.back())];
      }
      table.AddSequence(chunks);
      sequence_chunks.push_back(chunks);
      token_indptr.push_back(token_indptr.back() + tokens);
    }
    k_out = HostTensor(s.dtype, int64_t{token_indptr.back()} * s.num_kv_heads * s.head_dim);
    v_out = k_out;
  }

  // The values are small enough to be exact in every dtype.
  static double ValueOf(int32_t chunk, int32_t position, int32_t head, int32_t column, int kv) {
    return (chunk * 37 + position * 11 + head * 5 + column * 3 + kv * 101) % 251 - 125;
  }

  PagedGatherParams Params() {
    return {.dtype = shape.dtype,
            .layout = layout,
            .table = table.View(),
            .total_tokens = token_indptr.back(),
            .token_indptr = token_indptr.data(),
            .kv = pool.data(),
            .k_out = k_out.data(),
            .v_out = v_out.data()};
  }

  PagedGatherShape shape;
  PagedKvLayout layout;
  ChunkTable table;
  HostTensor pool, k_out, v_out;
  std::vector<int32_t> token_indptr;
  std::vector<int32_t> chunk_lengths;
  std::vector<std::vector<int32_t>> sequence_chunks;

 private:
  int32_t PagesOf(int32_t length) const { return length / shape.page_size + 1; }

  void FillChunk(int32_t chunk, const std::vector<int32_t>& pages, int32_t length) {
    const int64_t heads = shape.num_kv_heads, rows = shape.page_size, dim = shape.head_dim;
    for (int32_t t = 0; t < length; ++t) {
      const int64_t page = pages[static_cast<size_t>(t / shape.page_size)];
      const int64_t row = t % shape.page_size;
      for (int32_t h = 0; h < heads; ++h) {
        for (const int kv : {0, 1}) {
          // The layout's address, computed independently from its definition.
          const int64_t first = shape.order == KvOrder::kHnd
                                    ? (((page * 2 + kv) * heads + h) * rows + row) * dim
                                    : (((page * 2 + kv) * rows + row) * heads + h) * dim;
          for (int32_t i = 0; i < dim; ++i) pool.Set(first + i, ValueOf(chunk, t, h, i, kv));
        }
      }
    }
  }
};

}  // namespace tokline::testing
