// Builds paged_prefill problems for tests: a ragged batch over scattered pages with NaN in every
// slot that holds no token, and the bound that an output must satisfy.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/paged_prefill/paged_prefill.h"
#include "reference/paged_prefill.h"

namespace tokline::testing {

struct PrefillSequence {
  std::vector<int32_t> chunks;  // lengths
  int32_t new_tokens = 0;
};

struct PrefillSpec {
  DType dtype = DType::kBf16;
  int32_t num_kv_heads = 2;
  int32_t group = 2;
  int32_t head_dim = 64;
  int32_t page_size = 16;
  KvOrder order = KvOrder::kHnd;
  bool causal = true;
  int64_t row_padding = 8;  // elements between the rows of q and of out
  std::vector<PrefillSequence> sequences;
  uint64_t seed = 1;

  int32_t num_q_heads() const { return num_kv_heads * group; }
};

// Host buffers of one problem. Keys and values are a function of (seed, sequence, position, head)
// only, so other pages, chunks or neighbours do not change a sequence's tensors.
struct PrefillCase {
  explicit PrefillCase(const PrefillSpec& the_spec, uint64_t page_seed = 1)
      : spec(the_spec),
        layout{.num_pages = 0,
               .num_kv_heads = spec.num_kv_heads,
               .page_size = spec.page_size,
               .head_dim = spec.head_dim,
               .order = spec.order},
        q(spec.dtype, 0),
        kv(spec.dtype, 0),
        out(spec.dtype, 0) {
    constexpr int32_t kSparePages = 2;
    int32_t num_pages = kSparePages;
    for (const PrefillSequence& sequence : spec.sequences) {
      for (int32_t length : sequence.chunks) num_pages += PagesOf(length);
      q_indptr.push_back(q_indptr.back() + sequence.new_tokens);
    }
    layout.num_pages = num_pages;
    std::vector<int32_t> pages(num_pages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937_64(page_seed));

    kv = HostTensor(spec.dtype, layout.NumElements());
    kv.FillNan();
    q_stride = int64_t{spec.num_q_heads()} * spec.head_dim + spec.row_padding;
    q = HostTensor(spec.dtype, q_indptr.back() * q_stride);
    out = HostTensor(spec.dtype, q.size());
    lse.assign(q_indptr.back() * spec.num_q_heads(), 0);
    const int32_t* page = pages.data();
    for (size_t s = 0; s < spec.sequences.size(); ++s) {
      const PrefillSequence& sequence = spec.sequences[s];
      const uint64_t seed = spec.seed * 1000 + s;
      FillRows(q, q_indptr[s] * q_stride, sequence.new_tokens * q_stride, seed);
      std::vector<int32_t> chunks;
      int64_t position = 0;
      for (int32_t length : sequence.chunks) {
        const std::span<const int32_t> own(page, PagesOf(length));
        page += own.size();
        chunks.push_back(table.AddChunk(own, length));
        for (int32_t token = 0; token < length; ++token, ++position) {
          FillToken(own[token / spec.page_size], token % spec.page_size,
                    seed + 1'000'000 * (position + 1));
        }
      }
      table.AddSequence(chunks);
    }
  }

  int64_t total_tokens() const { return q_indptr.back(); }
  // Element offset in q and out.
  int64_t RowOffset(int64_t token, int32_t head) const {
    return token * q_stride + int64_t{head} * spec.head_dim;
  }

  // Params over host memory, without the plan.
  PagedPrefillParams Params() {
    return {.dtype = spec.dtype,
            .num_q_heads = spec.num_q_heads(),
            .causal = spec.causal,
            .scale = 1 / std::sqrt(static_cast<float>(spec.head_dim)),
            .layout = layout,
            .table = table.View(),
            .total_tokens = total_tokens(),
            .q_indptr = q_indptr.data(),
            .q = q.data(),
            .q_stride = q_stride,
            .kv = kv.data(),
            .out = out.data(),
            .out_stride = q_stride,
            .lse_ln = lse.data()};
  }

  PrefillSpec spec;
  PagedKvLayout layout;
  ChunkTable table;
  std::vector<int32_t> q_indptr{0};
  int64_t q_stride = 0;
  HostTensor q, kv, out;
  std::vector<float> lse;

 private:
  int32_t PagesOf(int32_t length) const { return (length + spec.page_size - 1) / spec.page_size; }
  static void FillRows(HostTensor& tensor, int64_t begin, int64_t size, uint64_t seed) {
    const HostTensor rows = RandomTensor(tensor.dtype(), size, seed);
    std::memcpy(tensor.bytes().data() + begin * SizeOf(tensor.dtype()), rows.data(),
                rows.bytes().size());
  }
  void FillToken(int32_t page, int32_t row, uint64_t seed) {
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      FillRows(kv, layout.KeyOffset(page, head, row), layout.head_dim, seed * 64 + head);
      FillRows(kv, layout.ValueOffset(page, head, row), layout.head_dim, seed * 64 + 32 + head);
    }
  }
};

// The result by definition, rounded only to fp32, and the terms of an output's bound.
struct PrefillExpectation {
  HostTensor out;        // [total_tokens, num_q_heads, head_dim], with the strides of the case's
                         // out
  HostTensor magnitude;  // the same with |v| instead of v: sum p |v|
  HostTensor squares;    // sum p^2 v^2
  std::vector<float> lse;

  explicit PrefillExpectation(PrefillCase& problem)
      : out(DType::kF32, problem.out.size()),
        magnitude(DType::kF32, problem.out.size()),
        squares(DType::kF32, problem.out.size()),
        lse(problem.lse.size()) {
    HostTensor q(DType::kF32, problem.q.size()), kv(DType::kF32, problem.kv.size());
    for (int64_t i = 0; i < q.size(); ++i) q.Set(i, problem.q[i]);
    for (int64_t i = 0; i < kv.size(); ++i) kv.Set(i, problem.kv[i]);
    PagedPrefillParams params = problem.Params();
    params.dtype = DType::kF32;
    params.q = q.data();
    params.kv = kv.data();
    params.out = out.data();
    params.lse_ln = lse.data();
    PagedPrefillReference(params);
    const int64_t half = problem.layout.KvStride();
    for (int64_t i = 0; i < kv.size(); ++i) {
      if (i / half % 2 == 1) kv.Set(i, std::abs(kv[i]));
    }
    params.out = magnitude.data();
    params.lse_ln = nullptr;
    PagedPrefillReference(params);
    // With doubled scores the reference weights by p^2.
    for (int64_t i = 0; i < kv.size(); ++i) {
      if (i / half % 2 == 1) kv.Set(i, kv[i] * kv[i]);
    }
    std::vector<float> doubled_lse(lse.size());
    params.out = squares.data();
    params.lse_ln = doubled_lse.data();
    params.scale *= 2;
    PagedPrefillReference(params);
    for (size_t row = 0; row < lse.size(); ++row) {
      const int64_t token = static_cast<int64_t>(row) / params.num_q_heads;
      const auto head = static_cast<int32_t>(static_cast<int64_t>(row) % params.num_q_heads);
      const double share = SquaredWeightShare(lse[row], doubled_lse[row]);
      for (int32_t d = 0; d < problem.spec.head_dim; ++d) {
        const int64_t at = problem.RowOffset(token, head) + d;
        squares.Set(at, squares[at] * share);
      }
    }
  }
};

// The bound for an algorithm that rounds each weight p to the storage type before it multiplies V:
// half an ulp of the output plus one eps of sum p |v| (half of it for the weights, the rest for
// fp32 scores, exponentials and sums). The root mean square over all outputs must be that of
// independent roundings: of the output, of each p (counted twice, the second time for what precedes
// it), and of scores with a magnitude of 64 in fp32.
inline ::testing::AssertionResult KeepsBound(const HostTensor& out,
                                             const PrefillExpectation& expected, DType dtype,
                                             uint64_t seed) {
  const auto within = WithinBound(
      out, expected.out, out.size(),
      [&](int64_t i) {
        return HalfUlp(dtype, expected.out[i]) + Epsilon(dtype) * expected.magnitude[i];
      },
      seed);
  if (!within) return within;
  return WithinRms(
      out, expected.out, out.size(),
      [&](int64_t i) {
        const double of_scores = 64 * Epsilon(DType::kF32) * expected.magnitude[i];
        return RoundingVariance(dtype, expected.out[i]) +
               2 * 0.25 * Epsilon(dtype) * Epsilon(dtype) / 3 * expected.squares[i] +
               of_scores * of_scores;
      },
      seed);
}

}  // namespace tokline::testing
