// Holds the references of the kernels that work on pages against plain loops, on drawn shapes of
// the CPU's ranges. All rows of the pool that hold no token are NaN, and stay so.
#include <gtest/gtest.h>

#include <cmath>

#include "benches/append_batch.h"
#include "benches/paged_batch.h"
#include "benches/sweep.h"
#include "harness/platform/random_values.h"
#include "reference/chunk_decode.h"
#include "reference/elements.h"
#include "reference/kv_append.h"
#include "reference/paged_gather.h"
#include "reference/paged_prefill.h"

namespace tokline::bench {
namespace {

using Json = nlohmann::ordered_json;
using Elements = std::vector<uint16_t>;

constexpr uint16_t kNan = 0xffff;  // in both types
constexpr int64_t kShapes = 60;

Elements Random(DType dtype, int64_t count, uint64_t seed) {
  Elements elements(static_cast<size_t>(count));
  FillRandom(dtype, elements.data(), 0, count, seed, 0);
  return elements;
}

// Shapes of at most a few million multiply-adds.
Json SmallShapes(const std::string& kernel) {
  const auto refusal = [](const std::string&, const Json& shape) -> std::string {
    int64_t pairs = 0;
    const std::vector<int64_t> contexts = shape.contains("kv")     ? shape["kv"]
                                          : shape.contains("lens") ? shape["lens"]
                                                                   : Json{1};
    for (size_t i = 0; i < contexts.size(); ++i) {
      pairs += contexts[i] * (shape.contains("q") ? shape["q"][i].get<int64_t>() : 1);
    }
    return pairs * shape.value("hq", 1) > 40000 ? "slow" : "";
  };
  return DrawSweep(kernel, kShapes, 11, kCpuSweep, refusal).shapes.families.begin().value();
}

// A batch whose K and V are random rows [token, head, head_dim], and its pool.
struct Pool {
  DType dtype;
  PagedBatch batch;
  std::vector<int32_t> starts;  // of the sequences' tokens
  Elements k, v;
  Elements kv;

  Pool(const Json& shape, const std::vector<int64_t>& lengths)
      : dtype(shape["dtype"] == "bf16" ? DType::kBf16 : DType::kF16), starts(PrefixSums(lengths)) {
    ShapeReader reader("", "", shape);
    PagedKvLayout layout = reader.Layout();
    layout.page_size = shape["pages"][0];
    batch = ShuffledBatch(layout, lengths);
    ++batch.layout.num_pages;  // a page of no sequence
    const int64_t row = int64_t{layout.num_kv_heads} * layout.head_dim;
    k = Random(dtype, starts.back() * row, 1);
    v = Random(dtype, starts.back() * row, 2);
    kv.assign(static_cast<size_t>(batch.layout.NumElements()), kNan);
    for (size_t seq = 0; seq < lengths.size(); ++seq) {
      for (int64_t t = 0; t < lengths[seq]; ++t) {
        const int32_t page = batch.chunk_pages[seq][static_cast<size_t>(t / layout.page_size)];
        for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
          const auto token_row = static_cast<int32_t>(t % layout.page_size);
          const int64_t from = RowAt(static_cast<int64_t>(seq), t, head);
          std::copy_n(k.begin() + from, layout.head_dim,
                      kv.begin() + batch.layout.KeyOffset(page, head, token_row));
          std::copy_n(v.begin() + from, layout.head_dim,
                      kv.begin() + batch.layout.ValueOffset(page, head, token_row));
        }
      }
    }
  }

  int64_t RowAt(int64_t seq, int64_t token, int32_t head) const {
    return ((starts[static_cast<size_t>(seq)] + token) * batch.layout.num_kv_heads + head) *
           batch.layout.head_dim;
  }
};

// Attention of a query row over the first `context` tokens of a sequence.
std::vector<double> Attention(const Pool& pool, const uint16_t* query, int64_t seq, int32_t head,
                              int64_t context) {
  const int32_t head_dim = pool.batch.layout.head_dim;
  std::vector<double> out(static_cast<size_t>(head_dim), 0.0), weights;
  for (int64_t t = 0; t < context; ++t) {
    double score = 0;
    for (int32_t i = 0; i < head_dim; ++i) {
      score += LoadElement(pool.dtype, query, i) *
               LoadElement(pool.dtype, pool.k.data(), pool.RowAt(seq, t, head) + i);
    }
    weights.push_back(score / std::sqrt(static_cast<double>(head_dim)));
  }
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  for (int64_t t = 0; t < context; ++t) {
    for (int32_t i = 0; i < head_dim; ++i) {
      out[static_cast<size_t>(i)] +=
          weights[static_cast<size_t>(t)] / sum *
          LoadElement(pool.dtype, pool.v.data(), pool.RowAt(seq, t, head) + i);
    }
  }
  return out;
}

// Both sides add in double, so they differ only by the rounding of the output; the scale is an fp32
// number.
void ExpectRow(DType dtype, const uint16_t* actual, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = LoadElement(dtype, actual, static_cast<int64_t>(i));
    const double bound = std::abs(expected[i]) * Epsilon(dtype) + 1e-6;
    ASSERT_TRUE(std::abs(value - expected[i]) <= bound)
        << "element " << i << " is " << value << " instead of " << expected[i] << "; bound "
        << bound;
  }
}

TEST(SweepReferencesTest, DecodeIsAttentionOverTheLiveRows) {
  for (const Json& shape : SmallShapes("chunk_decode")) {
    SCOPED_TRACE(shape.dump());
    const std::vector<int64_t> lengths = shape["lens"];
    const Pool pool(shape, lengths);
    const PagedKvLayout& layout = pool.batch.layout;
    const int32_t hq = shape["hq"];
    const int64_t width = int64_t{hq} * layout.head_dim;
    const Elements q = Random(pool.dtype, std::ssize(lengths) * width, 3);
    Elements out(q.size(), kNan);
    const ChunkTable table = pool.batch.Table();
    ChunkDecodeReference({.dtype = pool.dtype,
                          .num_q_heads = hq,
                          .scale = 1 / std::sqrt(static_cast<float>(layout.head_dim)),
                          .layout = layout,
                          .table = table.View(),
                          .q = q.data(),
                          .q_stride = width,
                          .kv = pool.kv.data(),
                          .out = out.data(),
                          .out_stride = width});
    for (int64_t seq = 0; seq < std::ssize(lengths); ++seq) {
      for (int32_t head = 0; head < hq; ++head) {
        const int64_t at = seq * width + head * layout.head_dim;
        ExpectRow(pool.dtype, out.data() + at,
                  Attention(pool, q.data() + at, seq, head / (hq / layout.num_kv_heads),
                            lengths[static_cast<size_t>(seq)]));
      }
    }
    if (HasFailure()) return;
  }
}

TEST(SweepReferencesTest, PrefillIsCausalAttentionOverTheLiveRows) {
  for (const Json& shape : SmallShapes("paged_prefill")) {
    SCOPED_TRACE(shape.dump());
    const std::vector<int64_t> tokens = shape["q"], contexts = shape["kv"];
    const Pool pool(shape, contexts);
    const PagedKvLayout& layout = pool.batch.layout;
    const int32_t hq = shape["hq"];
    const int64_t width = int64_t{hq} * layout.head_dim;
    const std::vector<int32_t> starts = PrefixSums(tokens);
    const Elements q = Random(pool.dtype, starts.back() * width, 3);
    Elements out(q.size(), kNan);
    const ChunkTable table = pool.batch.Table();
    PagedPrefillReference({.dtype = pool.dtype,
                           .num_q_heads = hq,
                           .scale = 1 / std::sqrt(static_cast<float>(layout.head_dim)),
                           .layout = layout,
                           .table = table.View(),
                           .total_tokens = starts.back(),
                           .q_indptr = starts.data(),
                           .q = q.data(),
                           .q_stride = width,
                           .kv = pool.kv.data(),
                           .out = out.data(),
                           .out_stride = width});
    for (size_t seq = 0; seq < tokens.size(); ++seq) {
      for (int64_t token = 0; token < tokens[seq]; ++token) {
        for (int32_t head = 0; head < hq; ++head) {
          const int64_t at = (starts[seq] + token) * width + head * layout.head_dim;
          ExpectRow(pool.dtype, out.data() + at,
                    Attention(pool, q.data() + at, static_cast<int64_t>(seq),
                              head / (hq / layout.num_kv_heads),
                              contexts[seq] - tokens[seq] + token + 1));
        }
      }
    }
    if (HasFailure()) return;
  }
}

TEST(SweepReferencesTest, GatherCopiesTheLiveRows) {
  for (const Json& shape : SmallShapes("paged_gather")) {
    SCOPED_TRACE(shape.dump());
    const Pool pool(shape, shape["lens"]);
    Elements k(pool.k.size(), kNan), v(pool.v.size(), kNan);
    const ChunkTable table = pool.batch.Table();
    PagedGatherReference({.dtype = pool.dtype,
                          .layout = pool.batch.layout,
                          .table = table.View(),
                          .total_tokens = pool.starts.back(),
                          .token_indptr = pool.starts.data(),
                          .kv = pool.kv.data(),
                          .k_out = k.data(),
                          .v_out = v.data()});
    ASSERT_TRUE(k == pool.k && v == pool.v);
  }
}

TEST(SweepReferencesTest, AppendWritesItsSlotsAndNoOthers) {
  for (const Json& shape : SmallShapes("kv_append")) {
    SCOPED_TRACE(shape.dump());
    const DType dtype = shape["dtype"] == "bf16" ? DType::kBf16 : DType::kF16;
    ShapeReader reader("", "", shape);
    PagedKvLayout layout = reader.Layout();
    layout.page_size = shape["pages"][0];
    const int64_t tokens = shape["tokens"];
    const AppendBatch batch =
        shape["one"] == 1 ? OneSequence(layout, tokens) : ManySequences(layout, tokens);
    layout = batch.layout;
    const int64_t width = int64_t{layout.num_kv_heads} * layout.head_dim;
    const Elements k = Random(dtype, tokens * width, 1), v = Random(dtype, tokens * width, 2);
    Elements kv(static_cast<size_t>(layout.NumElements()), kNan);
    KvAppendReference({.dtype = dtype,
                       .num_tokens = tokens,
                       .layout = layout,
                       .k = k.data(),
                       .k_stride = width,
                       .v = v.data(),
                       .v_stride = width,
                       .kv = kv.data(),
                       .slots = batch.slots.data()});
    Elements expected(kv.size(), kNan);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t slot = batch.slots[static_cast<size_t>(t)];
      const auto row = static_cast<int32_t>(slot % layout.page_size);
      for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
        const int64_t page = slot / layout.page_size, from = t * width + head * layout.head_dim;
        std::copy_n(k.begin() + from, layout.head_dim,
                    expected.begin() + layout.KeyOffset(page, head, row));
        std::copy_n(v.begin() + from, layout.head_dim,
                    expected.begin() + layout.ValueOffset(page, head, row));
      }
    }
    ASSERT_TRUE(kv == expected);
  }
}

}  // namespace
}  // namespace tokline::bench
