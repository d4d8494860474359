// Seeded problems for the tests of chunk_decode, on the CPU and on CUDA.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/chunk_decode/chunk_decode.h"
#include "reference/chunk_decode.h"

namespace tokline::testing {

struct DecodeCaseOptions {
  DType dtype = DType::kBf16;
  int32_t head_dim = 128;
  int32_t num_kv_heads = 2;
  int32_t group = 4;
  int32_t page_size = 16;
  KvOrder order = KvOrder::kHnd;
  std::vector<int32_t> chunk_lengths;           // of each chunk
  std::vector<std::vector<int32_t>> sequences;  // chunk ids of each sequence
  std::vector<std::vector<int32_t>> shifts;     // empty: all 0
  uint64_t seed = 1;
  uint64_t page_seed = 1;  // permutes the pages, nothing else
  bool nan_in_dead_slots = true;
};

// With kManyStatesLanes lanes, every tile of the first five sequences is a partial state: they have
// 300, 120, 65, 33 and 17. That is enough on average to be added in bundles.
inline constexpr int32_t kManyStatesLanes = 560;
inline const std::vector<int32_t> kManyStatesLengths = {19'200, 7'680, 4'160, 2'112,
                                                        1'088,  64,    0,     130};

// One sequence per length, each of one chunk.
inline DecodeCaseOptions WithLengths(DecodeCaseOptions options, std::vector<int32_t> lengths) {
  options.sequences.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(lengths.size()); ++i)
    options.sequences.push_back({i});
  options.chunk_lengths = std::move(lengths);
  return options;
}

struct DecodeCase {
  DecodeCaseOptions options;
  PagedKvLayout layout;
  int32_t num_q_heads = 0;
  ChunkTable table;
  HostTensor q{DType::kBf16, 0};
  HostTensor kv{DType::kBf16, 0};
  std::vector<float> rope;  // rows of (cos, sin) pairs
  int64_t rope_rows = 0;

  int64_t Rows() const { return int64_t{table.View().num_seqs} * num_q_heads; }

  ChunkDecodeParams Params(HostTensor& out, std::vector<float>& lse) {
    return {.dtype = options.dtype,
            .num_q_heads = num_q_heads,
            .scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim)),
            .layout = layout,
            .table = table.View(),
            .q = q.data(),
            .q_stride = int64_t{num_q_heads} * layout.head_dim,
            .kv = kv.data(),
            .out = out.data(),
            .out_stride = int64_t{num_q_heads} * layout.head_dim,
            .lse_ln = lse.data(),
            .rope_cos_sin = rope_rows > 0 ? rope.data() : nullptr,
            .rope_rows = rope_rows};
  }
};

// Calls visit(chunk, token, page, row) for every live token of every chunk.
template <typename Visit>
void ForEachToken(const DecodeCase& decode, Visit&& visit) {
  const ChunkTableView table = decode.table.View();
  for (int32_t c = 0; c < table.num_chunks; ++c) {
    for (int32_t t = 0; t < table.chunk_lengths[c]; ++t) {
      visit(c, t, table.chunk_pages[table.chunk_page_indptr[c] + t / decode.layout.page_size],
            t % decode.layout.page_size);
    }
  }
}

// K and V of a live token depend on (seed, chunk, token) alone, not on its page.
inline DecodeCase MakeDecodeCase(const DecodeCaseOptions& options) {
  DecodeCase decode;
  decode.options = options;
  int32_t num_pages = 1;  // one page that no chunk uses
  for (int32_t length : options.chunk_lengths) {
    num_pages += (length + options.page_size - 1) / options.page_size;
  }
  decode.layout = {.num_pages = num_pages,
                   .num_kv_heads = options.num_kv_heads,
                   .page_size = options.page_size,
                   .head_dim = options.head_dim,
                   .order = options.order};
  decode.num_q_heads = options.num_kv_heads * options.group;
  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::mt19937_64 page_rng(options.page_seed);
  std::shuffle(pages.begin(), pages.end(), page_rng);
  size_t next = 0;
  for (int32_t length : options.chunk_lengths) {
    const size_t count = static_cast<size_t>((length + options.page_size - 1) / options.page_size);
    decode.table.AddChunk({pages.data() + next, count}, length);
    next += count;
  }
  int32_t max_shift = 0;
  for (size_t s = 0; s < options.sequences.size(); ++s) {
    if (options.shifts.empty()) {
      decode.table.AddSequence(options.sequences[s]);
    } else {
      decode.table.AddSequence(options.sequences[s], options.shifts[s]);
      for (int32_t shift : options.shifts[s]) max_shift = std::max(max_shift, std::abs(shift));
    }
  }
  if (max_shift > 0) {
    decode.rope_rows = max_shift + 1;
    for (int64_t p = 0; p < decode.rope_rows; ++p) {
      for (int32_t i = 0; i < options.head_dim / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(1e4, -2.0 * i / options.head_dim);
        decode.rope.push_back(static_cast<float>(std::cos(angle)));
        decode.rope.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  decode.q = RandomTensor(options.dtype, decode.Rows() * options.head_dim, options.seed, 0.7);
  decode.kv = HostTensor(options.dtype, decode.layout.NumElements());
  if (options.nan_in_dead_slots) decode.kv.FillNan();
  const int64_t row_size = 2 * int64_t{options.num_kv_heads} * options.head_dim;
  int32_t current = -1;
  std::mt19937_64 rng;
  std::normal_distribution<double> normal(0, 1);
  ForEachToken(decode, [&](int32_t chunk, int32_t, int64_t page, int32_t row) {
    if (chunk != current) rng.seed(options.seed * 1000003 + static_cast<uint64_t>(chunk));
    current = chunk;
    for (int64_t i = 0; i < row_size; ++i) {
      const int32_t head = static_cast<int32_t>(i / options.head_dim) % options.num_kv_heads;
      const int64_t at = i < row_size / 2 ? decode.layout.KeyOffset(page, head, row)
                                          : decode.layout.ValueOffset(page, head, row);
      decode.kv.Set(at + i % options.head_dim, normal(rng));
    }
  });
  return decode;
}

// Makes every element of q and of K `value`.
inline void SetEqualScores(DecodeCase& decode, double value) {
  for (int64_t i = 0; i < decode.q.size(); ++i) decode.q.Set(i, value);
  ForEachToken(decode, [&](int32_t, int32_t, int64_t page, int32_t row) {
    for (int32_t h = 0; h < decode.layout.num_kv_heads; ++h) {
      for (int32_t d = 0; d < decode.layout.head_dim; ++d) {
        decode.kv.Set(decode.layout.KeyOffset(page, h, row) + d, value);
      }
    }
  });
}

struct DecodeResult {
  HostTensor out{DType::kBf16, 0};
  std::vector<float> lse;
};

inline DecodeResult RunReference(DecodeCase& decode) {
  DecodeResult result{HostTensor(decode.options.dtype, decode.q.size()),
                      std::vector<float>(static_cast<size_t>(decode.Rows()))};
  result.out.FillNan();
  ChunkDecodeReference(decode.Params(result.out, result.lse));
  return result;
}

// Replaces every element v of V by replace(v).
template <typename Replace>
void ReplaceValues(DecodeCase& decode, const Replace& replace) {
  for (int64_t i = 0; i < decode.kv.size(); ++i) {
    const bool is_value = i % decode.layout.PageStride() >= decode.layout.KvStride();
    if (is_value) decode.kv.Set(i, replace(decode.kv[i]));
  }
}

// sum p |v| / sum p of every output element, as the reference gives it for |V|, in fp32.
inline HostTensor ConditionSums(DecodeCase decode) {
  ReplaceValues(decode, [](double v) { return std::abs(v); });
  return RunReference(decode).out;
}

// sum p^2 v^2 / (sum p)^2 of every output element: the reference with doubled scores weighs by p^2.
inline std::vector<double> SquaredSums(DecodeCase decode, const std::vector<float>& lse) {
  ReplaceValues(decode, [](double v) { return v * v; });
  DecodeResult doubled{HostTensor(decode.options.dtype, decode.q.size()), lse};
  ChunkDecodeParams params = decode.Params(doubled.out, doubled.lse);
  params.scale *= 2;
  ChunkDecodeReference(params);
  std::vector<double> squares(static_cast<size_t>(doubled.out.size()));
  for (size_t i = 0; i < squares.size(); ++i) {
    const size_t row = i / static_cast<size_t>(decode.options.head_dim);
    squares[i] =
        doubled.out[static_cast<int64_t>(i)] * SquaredWeightShare(lse[row], doubled.lse[row]);
  }
  return squares;
}

// The bound of an output element: half an ulp of the result, plus the rounding of P to the storage
// type (half an epsilon) and 4 fp32 epsilons for each unit of score magnitude, times sum p |v|.
// `rounded_queries` allows for one ulp in the rotated query of a shifted chunk. All elements
// together have the root mean square that these roundings have when they are independent: of the
// result here and there, of each p, and of scores of a magnitude of 64 in fp32.
inline ::testing::AssertionResult MatchesReference(const DecodeResult& actual,
                                                   const DecodeResult& expected,
                                                   const DecodeCase& decode,
                                                   bool rounded_queries = false) {
  const DType dtype = decode.options.dtype;
  const HostTensor sums = ConditionSums(decode);
  double relative = 0.5 * Epsilon(dtype) + 4 * Epsilon(DType::kF32) * 64;
  if (rounded_queries) relative += 2 * Epsilon(dtype);
  auto within = WithinBound(
      actual.out, expected.out, expected.out.size(),
      [&](int64_t i) { return 2 * HalfUlp(dtype, expected.out[i]) + relative * sums[i]; },
      decode.options.seed);
  if (!within) return within << " (out)";
  const std::vector<double> squares = SquaredSums(decode, expected.lse);
  const double rounding_of_p = (rounded_queries ? 2.5 : 0.5) * Epsilon(dtype);
  within = WithinRms(
      actual.out, expected.out, expected.out.size(),
      [&](int64_t i) {
        const double of_scores = 64 * Epsilon(DType::kF32) * sums[i];
        return 2 * RoundingVariance(dtype, expected.out[i]) +
               rounding_of_p * rounding_of_p / 3 * squares[static_cast<size_t>(i)] +
               of_scores * of_scores;
      },
      decode.options.seed);
  if (!within) return within << " (out)";
  const double lse_relative = rounded_queries ? Epsilon(dtype) : 0;
  return WithinBound(
             actual.lse, expected.lse, static_cast<int64_t>(expected.lse.size()),
             [&](int64_t i) {
               return 1e-5 + 8 * Epsilon(DType::kF32) * std::abs(expected.lse[i]) +
                      lse_relative * std::abs(expected.lse[i]);
             },
             decode.options.seed)
         << " (lse)";
}

}  // namespace tokline::testing
