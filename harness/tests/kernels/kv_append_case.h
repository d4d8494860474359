// An append problem on the host, shared by the CPU and the CUDA tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "harness/tests/kernels/check.h"
#include "kernels/kv_append/kv_append.h"

namespace tokline::testing {

struct KvAppendShape {
  DType dtype = DType::kBf16;
  int64_t num_tokens = 37;
  int32_t num_q_heads = 6;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  KvOrder order = KvOrder::kHnd;
  bool norm = false;
  bool rope = false;
  uint64_t seed = 1;
};

// q, k and v are slices of one fused row, so every stride is wider than its rows.
struct KvAppendCase {
  explicit KvAppendCase(const KvAppendShape& s)
      : shape(s),
        layout{.num_pages = s.num_tokens / s.page_size + 3,
               .num_kv_heads = s.num_kv_heads,
               .page_size = s.page_size,
               .head_dim = s.head_dim,
               .order = s.order},
        row_elements((s.num_q_heads + 2 * s.num_kv_heads) * s.head_dim + 16),
        qkv(RandomTensor(s.dtype, s.num_tokens * row_elements, s.seed, 0.5)),
        q_out(s.dtype, s.num_tokens * s.num_q_heads * s.head_dim),
        pool(s.dtype, layout.NumElements()),
        q_weight(s.dtype, s.head_dim),
        k_weight(s.dtype, s.head_dim) {
    pool.FillNan();
    std::mt19937_64 rng(s.seed);
    slots.resize(static_cast<size_t>(layout.NumSlots()));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots.resize(static_cast<size_t>(s.num_tokens));
    std::uniform_real_distribution<double> weight(0.5, 100);  // K-norm weights reach 96.5
    for (int32_t i = 0; i < s.head_dim; ++i) {
      q_weight.Set(i, weight(rng));
      k_weight.Set(i, weight(rng));
    }
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      positions.push_back(static_cast<int32_t>(rng() % kRopeRows));
    }
    for (int64_t p = 0; p < kRopeRows; ++p) {
      for (int32_t i = 0; i < s.head_dim / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / s.head_dim);
        rope.push_back(static_cast<float>(std::cos(angle)));
        rope.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  KvAppendParams Params() {
    const int64_t element = SizeOf(shape.dtype);
    char* const base = static_cast<char*>(qkv.data());
    const int64_t q_elements = int64_t{shape.num_q_heads} * shape.head_dim;
    const int64_t kv_elements = int64_t{shape.num_kv_heads} * shape.head_dim;
    return {.dtype = shape.dtype,
            .num_tokens = shape.num_tokens,
            .num_q_heads = shape.num_q_heads,
            .layout = layout,
            .q_in = base,
            .q_in_stride = row_elements,
            .q_out = q_out.data(),
            .q_out_stride = q_elements,
            .k = base + q_elements * element,
            .k_stride = row_elements,
            .v = base + (q_elements + kv_elements) * element,
            .v_stride = row_elements,
            .kv = pool.data(),
            .slots = slots.data(),
            .q_norm_weight = shape.norm ? q_weight.data() : nullptr,
            .k_norm_weight = shape.norm ? k_weight.data() : nullptr,
            .norm_eps = 1e-6f,
            .positions = positions.data(),
            .rope_cos_sin = shape.rope ? rope.data() : nullptr,
            .rope_rows = kRopeRows};
  }

  // An element of the fused row; `column` counts from q's first column.
  double Input(int64_t token, int64_t column) const { return qkv[token * row_elements + column]; }

  static constexpr int64_t kRopeRows = 509;

  KvAppendShape shape;
  PagedKvLayout layout;
  int64_t row_elements;
  HostTensor qkv, q_out, pool, q_weight, k_weight;
  std::vector<int64_t> slots;
  std::vector<int32_t> positions;
  std::vector<float> rope;
};

// Compares rows of transformed values. The pair norm of RoPE bounds the effect of one ulp of a
// normalised value, or of its product with the weight. Such flips need an fp32 value within
// rounding of the midpoint between two bf16 values, so they are rare; a misplaced rounding is not.
// Errors of many elements of one row are found by its root mean square, which may be that of
// independent roundings of the output and of both elements of its pair, each twice with a norm.
inline ::testing::AssertionResult RowsMatch(const HostTensor& actual, const HostTensor& expected,
                                            const KvAppendShape& shape) {
  const int32_t half = shape.head_dim / 2;
  const double epsilon = Epsilon(shape.dtype);
  const auto pair_norm = [&](int64_t i) {
    return std::hypot(expected[i], expected[i % shape.head_dim < half ? i + half : i - half]);
  };
  const auto bound = [&](int64_t i) {
    return 2 * HalfUlp(shape.dtype, expected[i]) +
           (shape.norm ? 3 * epsilon : 4 * Epsilon(DType::kF32)) * pair_norm(i);
  };
  int64_t compared = 0, different = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (std::isnan(e)) {  // never written
      if (!std::isnan(a)) {
        return ::testing::AssertionFailure() << "index " << i << " was written: " << a;
      }
      continue;
    }
    ++compared;
    if (a == e) continue;
    ++different;
    if (!(std::abs(a - e) <= bound(i))) {
      return ::testing::AssertionFailure()
             << "index " << i << ": actual " << a << ", expected " << e << ", bound " << bound(i)
             << ", seed " << shape.seed;
    }
  }
  if (different * 200 > compared) {
    return ::testing::AssertionFailure()
           << different << " of " << compared << " values differ, allowed is 1 in 200; seed "
           << shape.seed;
  }
  for (int64_t row = 0; row < expected.size(); row += shape.head_dim) {
    if (std::isnan(expected[row])) continue;
    std::vector<double> a, e;
    for (int64_t i = row; i < row + shape.head_dim; ++i) {
      a.push_back(actual[i]);
      e.push_back(expected[i]);
    }
    auto within = WithinRms(
        a, e, shape.head_dim,
        [&](int64_t i) {
          const double of_pair = (shape.norm ? epsilon : Epsilon(DType::kF32)) * pair_norm(row + i);
          return 2 * RoundingVariance(shape.dtype, e[static_cast<size_t>(i)]) +
                 2 * of_pair * of_pair / 12;
        },
        shape.seed);
    if (!within) return within << " (row " << row / shape.head_dim << ")";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tokline::testing
