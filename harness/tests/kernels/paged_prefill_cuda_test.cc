// paged_prefill on the device: against the reference, and against itself where nothing may change.
#include <cuda_runtime_api.h>

#include <cmath>
#include <numeric>
#include <string>
#include <thread>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/device_table.h"
#include "harness/tests/kernels/paged_prefill_case.h"
#include "harness/tests/kernels/sequence_tokens.h"
#include "kernels/device/current_device.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::PrefillCase;
using testing::PrefillExpectation;
using testing::PrefillSequence;
using testing::PrefillSpec;

template <typename T>
DeviceBuffer Upload(const T* data, int64_t count) {
  DeviceBuffer buffer(count * static_cast<int64_t>(sizeof(T)));
  buffer.CopyFrom(data, buffer.bytes());
  return buffer;
}

PagedPrefillVariant variant_of_test = PagedPrefillVariant::kAuto;

// One problem on the device. The output's rows and the workspace start as NaN, the padding between
// rows as 0.
class DeviceCase {
 public:
  // The problem's pages start at page `first_page` of the device's pool.
  explicit DeviceCase(PrefillCase& problem, int64_t first_page = 0)
      : problem_(problem), params_(problem.Params()) {
    const ChunkTableView table = params_.table;
    const int32_t num_pages = table.chunk_page_indptr[table.num_chunks];
    std::vector<int32_t> pages(table.chunk_pages, table.chunk_pages + num_pages);
    for (int32_t& page : pages) page += static_cast<int32_t>(first_page);
    ChunkTableView moved = table;
    moved.chunk_pages = pages.data();
    const PagedPrefillPlan plan = PlanPagedPrefill(
        table, params_.q_indptr, params_.layout, params_.num_q_heads, params_.causal,
        CurrentDeviceFacts(), MaxPagedPrefillParts(CurrentDeviceFacts()));
    table_ = testing::DeviceTable(moved);
    q_indptr_ = Upload(problem.q_indptr.data(), static_cast<int64_t>(problem.q_indptr.size()));
    tiles_ = Upload(plan.tiles.data(), static_cast<int64_t>(plan.tiles.size()));
    parts_ = Upload(plan.parts.data(), static_cast<int64_t>(plan.parts.size()));
    workspace_ = DeviceBuffer(PagedPrefillWorkspaceBytes(params_.layout.head_dim,
                                                         static_cast<int64_t>(plan.parts.size())));
    q_ = testing::ToDevice(problem.q);
    const int64_t pool_bytes = problem.kv.size() * SizeOf(problem.spec.dtype);
    const int64_t offset = first_page * problem.layout.PageStride() * SizeOf(problem.spec.dtype);
    kv_ = DeviceBuffer(offset + pool_bytes);
    kv_.CopyFrom(problem.kv.data(), pool_bytes, offset);
    lse_ = DeviceBuffer(static_cast<int64_t>(problem.lse.size() * sizeof(float)));
    out_ = DeviceBuffer(problem.out.size() * SizeOf(problem.spec.dtype));

    params_.layout.num_pages += first_page;
    params_.table = table_.View();
    params_.q_indptr = q_indptr_.as<int32_t>();
    params_.q = q_.data();
    params_.kv = kv_.data();
    params_.out = out_.data();
    params_.lse_ln = lse_.as<float>();
    params_.variant = variant_of_test;
    params_.tile_tokens = plan.tile_tokens;
    params_.num_blocks = plan.num_blocks;
    params_.num_tiles = static_cast<int32_t>(plan.tiles.size());
    params_.tiles = tiles_.as<PagedPrefillTile>();
    params_.num_parts = static_cast<int32_t>(plan.parts.size());
    params_.parts = parts_.as<PagedPrefillPart>();
    params_.workspace = workspace_.data();
    params_.workspace_bytes = workspace_.bytes();
    ClearOutput();
  }

  void ClearOutput() {
    HostTensor out(problem_.spec.dtype, problem_.out.size());
    out.FillNan();
    for (int64_t i = 0; i < out.size(); ++i) {
      if (i % problem_.q_stride >= problem_.q_stride - problem_.spec.row_padding) out.Set(i, 0);
    }
    out_.CopyFrom(out.data(), out_.bytes());
    lse_.Fill(0xff);
    if (workspace_.bytes() > 0) workspace_.Fill(0xff);  // NaN
  }

  PagedPrefillParams& params() { return params_; }
  HostTensor Out() const { return testing::ToHost(out_, problem_.spec.dtype); }
  std::vector<float> Lse() const { return lse_.ToHost<float>(); }

 private:
  PrefillCase& problem_;
  PagedPrefillParams params_;
  testing::DeviceTable table_;
  DeviceBuffer q_indptr_, tiles_, parts_, workspace_, q_, kv_, lse_, out_;
};

struct Output {
  HostTensor out;
  std::vector<float> lse;
};

Output RunOnDevice(PrefillCase& problem) {
  DeviceCase device(problem);
  Launch(device.params(), {});
  return {device.Out(), device.Lse()};
}

std::string Describe(const PrefillSpec& spec) {
  return StrCat(Name(spec.dtype), " head_dim ", spec.head_dim, " group ", spec.group, " page ",
                spec.page_size, spec.order == KvOrder::kHnd ? " HND" : " NHD",
                spec.causal ? " causal" : " full");
}

void ExpectWithinBound(PrefillCase& problem, const Output& actual) {
  SCOPED_TRACE(Describe(problem.spec));
  const PrefillExpectation expected(problem);
  EXPECT_TRUE(testing::KeepsBound(actual.out, expected, problem.spec.dtype, problem.spec.seed));
  EXPECT_TRUE(testing::WithinBound(
      actual.lse, expected.lse, static_cast<int64_t>(expected.lse.size()),
      [&](int64_t i) { return 1e-5 * (1 + std::abs(expected.lse[i])); }, problem.spec.seed));
}

// Empty sequences and chunks, contexts shorter than a tile, past tokens, several query tiles.
std::vector<PrefillSequence> Ragged() {
  return {{{}, 0},         {{1}, 1},   {{150}, 150}, {{0, 70, 1, 64}, 90},
          {{33}, 0},       {{128}, 1}, {{63}, 63},   {{16, 16, 16, 300}, 130},
          {{65, 200}, 200}};
}

// Every test runs with the variant that the device selects and with the portable one.
class PagedPrefillCudaTest : public testing::CudaTest,
                             public ::testing::WithParamInterface<PagedPrefillVariant> {
 protected:
  void SetUp() override {
    variant_of_test = GetParam();
    testing::CudaTest::SetUp();
  }
};

INSTANTIATE_TEST_SUITE_P(Variants, PagedPrefillCudaTest,
                         ::testing::Values(PagedPrefillVariant::kAuto,
                                           PagedPrefillVariant::kPortable),
                         [](const auto& info) {
                           return info.param == PagedPrefillVariant::kAuto ? "Auto" : "Portable";
                         });

TEST_P(PagedPrefillCudaTest, EveryGroupSizeMatchesReference) {
  for (int32_t group = 1; group <= 16; ++group) {
    PrefillCase problem({.dtype = group % 2 ? DType::kBf16 : DType::kF16,
                         .group = group,
                         .head_dim = group % 3 ? 128 : 64,
                         .sequences = Ragged(),
                         .seed = static_cast<uint64_t>(group)});
    ExpectWithinBound(problem, RunOnDevice(problem));
  }
}

TEST_P(PagedPrefillCudaTest, EveryLayoutMatchesReference) {
  for (const int32_t page_size : {16, 32, 64, 128, 256, 512}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      for (const bool causal : {true, false}) {
        PrefillCase problem({.dtype = causal ? DType::kBf16 : DType::kF16,
                             .num_kv_heads = 3,
                             .group = 2,
                             .head_dim = (page_size % 64 == 0) != (page_size > 128) ? 128 : 64,
                             .page_size = page_size,
                             .order = order,
                             .causal = causal,
                             .sequences = Ragged(),
                             .seed = static_cast<uint64_t>(page_size)});
        ExpectWithinBound(problem, RunOnDevice(problem));
      }
    }
  }
}

TEST_P(PagedPrefillCudaTest, LongContextMatchesReference) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    PrefillCase problem({.dtype = dtype,
                         .num_kv_heads = 1,
                         .group = 4,
                         .head_dim = 128,
                         .page_size = 256,
                         .sequences = {{{20'000}, 40}}});
    ExpectWithinBound(problem, RunOnDevice(problem));
  }
}

// Few tiles with long contexts, which are cut into two to a dozen parts. The last sequence has a
// whole tile of new tokens; with groups of 1, its first rows see nothing of the last part.
std::vector<PrefillSequence> FewAndLong(int32_t group) {
  return {
      {{3000}, 11}, {{5, 700, 0, 129, 1, 800}, 20}, {{}, 0}, {{40}, 40}, {{50, 975}, 128 / group}};
}

TEST_P(PagedPrefillCudaTest, ContextsInPartsMatchReferenceAndRepeatBitwise) {
  for (const int32_t group : {1, 7, 8, 13}) {
    for (const int32_t head_dim : {64, 128}) {
      const bool causal = group == 1 || group == 13 || (group == 7) == (head_dim == 64);
      PrefillCase problem({.dtype = group % 2 == head_dim / 128 ? DType::kBf16 : DType::kF16,
                           .num_kv_heads = group == 1 ? 2 : 1,
                           .group = group,
                           .head_dim = head_dim,
                           .page_size = group < 8 ? 32 : 128,
                           .order = head_dim == 64 ? KvOrder::kNhd : KvOrder::kHnd,
                           .causal = causal,
                           .sequences = FewAndLong(group),
                           .seed = static_cast<uint64_t>(group)});
      DeviceCase device(problem);
      ASSERT_GT(device.params().num_parts, 0);
      Launch(device.params(), {});
      const Output first{device.Out(), device.Lse()};
      ExpectWithinBound(problem, first);
      device.ClearOutput();
      Launch(device.params(), {});
      EXPECT_EQ(device.Out(), first.out);
      EXPECT_EQ(device.Lse(), first.lse);
    }
  }
}

// The largest scores of the parts lie far apart, and not in order.
TEST_P(PagedPrefillCudaTest, PartsOfVeryDifferentScoresMatchReference) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    PrefillCase problem({.dtype = dtype,
                         .num_kv_heads = 1,
                         .group = 3,
                         .head_dim = 128,
                         .page_size = 128,
                         .sequences = {{{3000}, 9}}});
    const ChunkTableView table = problem.table.View();
    for (int32_t page = 0; page < 24; ++page) {
      for (int64_t i = 0; i < int64_t{128} * 128; ++i) {
        const int64_t at =
            problem.layout.KeyOffset(table.chunk_pages[page], 0, static_cast<int32_t>(i / 128)) +
            i % 128;
        if (!std::isnan(problem.kv[at])) problem.kv.Set(at, problem.kv[at] * (1 + page * 7 % 24));
      }
    }
    DeviceCase device(problem);
    ASSERT_GT(device.params().num_parts, 0);
    ExpectWithinBound(problem, RunOnDevice(problem));
  }
}

// Means of integers are exact, and so are the sums of parts.
TEST_P(PagedPrefillCudaTest, MeansOfSmallIntegersInPartsAreBitwiseEqual) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    PrefillCase problem({.dtype = dtype,
                         .num_kv_heads = 1,
                         .group = 5,
                         .head_dim = 128,
                         .sequences = FewAndLong(5)});
    for (int64_t i = 0; i < problem.q.size(); ++i) problem.q.Set(i, 0);
    const HostTensor integers = testing::IntegerTensor(dtype, problem.kv.size(), 3, -8, 8);
    for (int64_t i = 0; i < problem.kv.size(); ++i) {
      if (!std::isnan(problem.kv[i])) problem.kv.Set(i, integers[i]);
    }
    const Output actual = RunOnDevice(problem);
    PagedPrefillReference(problem.Params());
    for (int64_t i = 0; i < problem.out.size(); ++i) {
      const bool padding = i % problem.q_stride >= problem.q_stride - problem.spec.row_padding;
      ASSERT_EQ(actual.out[i], padding ? 0 : problem.out[i]) << Name(dtype) << " index " << i;
    }
  }
}

// The same precision in the simplest order: fp32 scores and softmax, rounded weights, fp32 sum.
HostTensor NaiveSamePrecision(PrefillCase& problem) {
  HostTensor out(problem.spec.dtype, problem.out.size());
  const PagedPrefillParams params = problem.Params();
  const int32_t dim = problem.spec.head_dim;
  const int32_t* pages = params.table.chunk_pages;  // one sequence of one chunk
  const int32_t length = params.table.chunk_lengths[0];
  for (int64_t row = 0; row < params.total_tokens; ++row) {
    const int64_t visible = length - params.total_tokens + row + 1;
    for (int32_t head = 0; head < params.num_q_heads; ++head) {
      const auto key = [&](int64_t j) {
        return problem.layout.KeyOffset(pages[j / problem.spec.page_size],
                                        head / problem.spec.group,
                                        static_cast<int32_t>(j % problem.spec.page_size));
      };
      std::vector<float> weights(visible, 0);
      float max = -INFINITY, sum = 0;
      for (int64_t j = 0; j < visible; ++j) {
        for (int32_t d = 0; d < dim; ++d) {
          weights[j] += static_cast<float>(problem.q[problem.RowOffset(row, head) + d]) *
                        static_cast<float>(problem.kv[key(j) + d]);
        }
        max = std::max(max, weights[j] *= params.scale);
      }
      for (float& weight : weights) sum += weight = std::exp(weight - max);
      for (float& weight : weights) {
        weight = static_cast<float>(RoundTo(problem.spec.dtype, weight / sum));
      }
      for (int32_t d = 0; d < dim; ++d) {
        float value = 0;
        for (int64_t j = 0; j < visible; ++j) {
          value +=
              weights[j] * static_cast<float>(problem.kv[key(j) + problem.layout.KvStride() + d]);
        }
        out.Set(problem.RowOffset(row, head) + d, value);
      }
    }
  }
  return out;
}

TEST_P(PagedPrefillCudaTest, ErrorIsThatOfTheNaiveSamePrecisionAlgorithm) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    PrefillCase problem({.dtype = dtype,
                         .num_kv_heads = 1,
                         .group = 2,
                         .head_dim = 128,
                         .sequences = {{{700}, 100}}});
    const Output actual = RunOnDevice(problem);
    const HostTensor naive = NaiveSamePrecision(problem);
    const PrefillExpectation expected(problem);
    double error = 0, naive_error = 0;
    for (int64_t i = 0; i < naive.size(); ++i) {
      error += std::pow(actual.out[i] - expected.out[i], 2);
      naive_error += std::pow(naive[i] - expected.out[i], 2);
    }
    EXPECT_GT(naive_error, 0);
    EXPECT_LE(std::sqrt(error), 1.25 * std::sqrt(naive_error)) << Name(dtype);
  }
}

// Zero queries weight all tokens equally: sums of integers are exact, and so is one division.
TEST_P(PagedPrefillCudaTest, MeansOfSmallIntegersAreBitwiseEqual) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int32_t head_dim : {64, 128}) {
      PrefillCase problem(
          {.dtype = dtype, .group = 5, .head_dim = head_dim, .sequences = Ragged()});
      for (int64_t i = 0; i < problem.q.size(); ++i) problem.q.Set(i, 0);
      const HostTensor integers = testing::IntegerTensor(dtype, problem.kv.size(), 3, -8, 8);
      for (int64_t i = 0; i < problem.kv.size(); ++i) {
        if (!std::isnan(problem.kv[i])) problem.kv.Set(i, integers[i]);
      }
      const Output actual = RunOnDevice(problem);
      PagedPrefillReference(problem.Params());
      const PagedPrefillParams params = problem.Params();
      for (int64_t i = 0; i < problem.out.size(); ++i) {
        const bool padding = i % problem.q_stride >= problem.q_stride - problem.spec.row_padding;
        ASSERT_EQ(actual.out[i], padding ? 0 : problem.out[i])
            << Name(dtype) << " index " << i << " of rows of " << params.q_stride;
      }
    }
  }
}

// Of scores of 2^24 and more in base 2, a float has no bits below 1: in fp16 the weights must stay
// below 2^16.
TEST_P(PagedPrefillCudaTest, EqualScoresWithoutFractionGiveTheMean) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    PrefillCase problem({.dtype = dtype, .head_dim = 128, .sequences = Ragged()});
    for (const int value : {1024, 1344, 1984}) {
      SCOPED_TRACE(StrCat("value ", value));
      for (int64_t i = 0; i < problem.q.size(); ++i) problem.q.Set(i, value);
      for (int64_t i = 0; i < problem.kv.size(); ++i) {
        const bool is_key = i % problem.layout.PageStride() < problem.layout.KvStride();
        if (is_key && !std::isnan(problem.kv[i])) problem.kv.Set(i, value);
      }
      ExpectWithinBound(problem, RunOnDevice(problem));
    }
  }
}

// A query that matches only one key returns exactly that key's value, wherever its page lies.
TEST_P(PagedPrefillCudaTest, QueriesSelectTheirTokenBitwise) {
  for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
    PrefillCase problem({.num_kv_heads = 2,
                         .group = 3,
                         .head_dim = 128,
                         .page_size = 32,
                         .order = order,
                         .sequences = {{{40, 0, 77, 11}, 128}}});
    // Keys are the token's index in 8 bits of +-1; a query repeats the bits of its target.
    const ChunkTableView table = problem.table.View();
    std::vector<int64_t> keys;  // offset of each token's key for head 0
    testing::ForEachTokenOf(table, 0, 32, [&](const testing::SequenceToken& token) {
      keys.push_back(problem.layout.KeyOffset(token.page, 0, token.row));
    });
    const auto bit = [](int64_t token, int32_t d) { return (token >> (d % 8)) & 1 ? 1.0 : -1.0; };
    for (size_t j = 0; j < keys.size(); ++j) {
      for (int32_t head = 0; head < 2; ++head) {
        for (int32_t d = 0; d < 128; ++d) {
          problem.kv.Set(keys[j] + head * problem.layout.HeadStride() + d,
                         bit(static_cast<int64_t>(j), d));
        }
      }
    }
    const auto target = [](int64_t row, int32_t head) {
      return (row * 37 + head * 11) % (row + 1);
    };
    for (int64_t row = 0; row < 128; ++row) {
      for (int32_t head = 0; head < 6; ++head) {
        for (int32_t d = 0; d < 128; ++d) {
          problem.q.Set(problem.RowOffset(row, head) + d, 64 * bit(target(row, head), d));
        }
      }
    }
    const Output actual = RunOnDevice(problem);
    for (int64_t row = 0; row < 128; ++row) {
      for (int32_t head = 0; head < 6; ++head) {
        const int64_t value = keys[target(row, head)] + problem.layout.KvStride() +
                              head / 3 * problem.layout.HeadStride();
        for (int32_t d = 0; d < 128; ++d) {
          ASSERT_EQ(actual.out[problem.RowOffset(row, head) + d], problem.kv[value + d])
              << "row " << row << " head " << head << " column " << d;
        }
      }
    }
  }
}

TEST_P(PagedPrefillCudaTest, OtherPagesGiveTheSameBits) {
  PrefillCase one({.head_dim = 128, .sequences = Ragged()}, 1);
  PrefillCase other({.head_dim = 128, .sequences = Ragged()}, 2);
  const Output a = RunOnDevice(one), b = RunOnDevice(other);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
}

TEST_P(PagedPrefillCudaTest, DeadSlotsDoNotMatterBitwise) {
  PrefillCase nan({.head_dim = 128, .page_size = 64, .sequences = Ragged()});
  PrefillCase stale({.head_dim = 128, .page_size = 64, .sequences = Ragged()});
  for (int64_t i = 0; i < stale.kv.size(); ++i) {
    if (std::isnan(stale.kv[i])) stale.kv.Set(i, 3);
  }
  const Output a = RunOnDevice(nan), b = RunOnDevice(stale);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
}

TEST_P(PagedPrefillCudaTest, NeighboursInTheBatchDoNotMatterBitwise) {
  PrefillCase alone({.sequences = {{{90, 60}, 100}}});
  PrefillCase crowd({.sequences = {{{90, 60}, 100}, {{400}, 400}, {{7}, 7}, {{256}, 1}}});
  const Output a = RunOnDevice(alone);
  const auto expect_same = [&] {
    const Output b = RunOnDevice(crowd);
    EXPECT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.bytes().size()), 0);
    EXPECT_TRUE(std::equal(a.lse.begin(), a.lse.end(), b.lse.begin()));
  };
  expect_same();
  // A tile's rows beyond its sequence may be filled with those of the next one.
  for (int64_t i = 100 * crowd.q_stride; i < crowd.q.size(); ++i) crowd.q.Set(i, NAN);
  expect_same();
}

TEST_P(PagedPrefillCudaTest, ManyTilesForEachSmMatchReference) {
  std::vector<PrefillSequence> sequences;
  for (int32_t s = 0; s < 48; ++s) {
    const int32_t length = s * 37 % 300 + 1;
    sequences.push_back({{length / 3, length - length / 3}, length - s % 3 * (length / 4)});
  }
  PrefillCase wide({.num_kv_heads = 4, .head_dim = 128, .page_size = 32, .sequences = sequences});
  ExpectWithinBound(wide, RunOnDevice(wide));
  PrefillCase narrow({.dtype = DType::kF16,
                      .num_kv_heads = 2,
                      .group = 13,
                      .head_dim = 64,
                      .page_size = 64,
                      .order = KvOrder::kNhd,
                      .sequences = sequences});
  ExpectWithinBound(narrow, RunOnDevice(narrow));
}

// Both kernels write rows of outputs: the first those of whole contexts, the merge those of parts.
TEST_P(PagedPrefillCudaTest, RowsOfTheOutputMayLieFurtherApart) {
  for (const bool in_parts : {false, true}) {
    SCOPED_TRACE(in_parts ? "in parts" : "whole");
    PrefillCase problem({.head_dim = 128, .sequences = in_parts ? FewAndLong(2) : Ragged()});
    const Output close = RunOnDevice(problem);
    DeviceCase device(problem);
    ASSERT_EQ(device.params().num_parts > 0, in_parts);
    const int64_t rows = device.params().total_tokens;
    device.params().out_stride = problem.q_stride + 24;
    DeviceBuffer out(rows * device.params().out_stride * 2);
    out.Fill(0);
    device.params().out = out.data();
    Launch(device.params(), {});
    const HostTensor apart = testing::ToHost(out, problem.spec.dtype);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < device.params().out_stride; ++i) {
        const bool inside = i < problem.q_stride - problem.spec.row_padding;
        ASSERT_EQ(apart[row * device.params().out_stride + i],
                  inside ? close.out[row * problem.q_stride + i] : 0)
            << row << " " << i;
      }
    }
  }
}

// Checks that `launches` launches of `second`, which reads what `first` writes, give the same bits
// whether or not they depend on the launch before them and may start while it runs.
void ExpectSameInAChain(DeviceCase& first, DeviceCase& second, int launches) {
  cudaStream_t stream;
  TOKLINE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto run = [&](bool dependent) {
    first.ClearOutput();
    second.ClearOutput();
    TOKLINE_CUDA(cudaDeviceSynchronize());
    Launch(first.params(), {.stream = stream});
    if (!dependent) TOKLINE_CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < launches; ++i) {
      Launch(second.params(), {.stream = stream, .dependent = dependent});
    }
    TOKLINE_CUDA(cudaStreamSynchronize(stream));
    return second.Out();
  };
  const HostTensor expected = run(false);
  for (int round = 0; round < 5; ++round) ASSERT_EQ(run(true), expected);
  TOKLINE_CUDA(cudaStreamDestroy(stream));
}

// With few tiles, blocks of the second launch start while the first is still writing its queries.
TEST_P(PagedPrefillCudaTest, ADependentLaunchWaitsForItsPredecessor) {
  PrefillCase problem({.num_kv_heads = 1, .head_dim = 128, .sequences = {{{3000}, 3000}}});
  DeviceCase first(problem), second(problem);
  second.params().q = first.params().out;
  ExpectSameInAChain(first, second, 1);
}

// The next launch may not write states before those of this one are merged.
TEST_P(PagedPrefillCudaTest, DependentLaunchesMayShareAWorkspace) {
  PrefillCase problem({.num_kv_heads = 1, .head_dim = 128, .sequences = FewAndLong(2)});
  DeviceCase first(problem), second(problem);
  ASSERT_GT(first.params().num_parts, 0);
  second.params().q = first.params().out;
  second.params().workspace = first.params().workspace;
  ExpectSameInAChain(first, second, 2);
}

TEST_P(PagedPrefillCudaTest, LaunchesFromANewThread) {
  PrefillCase problem({.sequences = Ragged()});
  const Output here = RunOnDevice(problem);
  DeviceCase device(problem);
  std::thread([&] { Launch(device.params(), {}); }).join();
  EXPECT_EQ(device.Out(), here.out);
}

TEST_P(PagedPrefillCudaTest, OneContextInManyChunksStaysWithinBound) {
  std::vector<int32_t> ones(90, 1);  // chunks of one token, then longer ones
  ones.insert(ones.end(), {0, 64, 65, 63, 0});
  PrefillCase split({.head_dim = 128, .sequences = {{ones, 200}}});
  PrefillCase whole({.head_dim = 128, .sequences = {{{282}, 200}}});
  const Output actual = RunOnDevice(split);
  ExpectWithinBound(whole, actual);
  ExpectWithinBound(split, actual);
}

TEST_P(PagedPrefillCudaTest, RepeatedLaunchesGiveTheSameBits) {
  PrefillCase problem({.head_dim = 128, .page_size = 64, .sequences = {{{3000}, 3000}}});
  DeviceCase device(problem);
  Launch(device.params(), {});
  const HostTensor first = device.Out();
  for (int round = 0; round < 5; ++round) {
    device.ClearOutput();
    Launch(device.params(), {});
    ASSERT_EQ(device.Out(), first);
  }
}

TEST_P(PagedPrefillCudaTest, WorksInAGraphAsADependentLaunchAndWithoutLse) {
  for (const bool in_parts : {false, true}) {
    SCOPED_TRACE(in_parts ? "in parts" : "whole");
    PrefillCase problem({.sequences = in_parts ? FewAndLong(2) : Ragged()});
    const Output plain = RunOnDevice(problem);
    DeviceCase device(problem);
    ASSERT_EQ(device.params().num_parts > 0, in_parts);
    cudaStream_t stream;
    TOKLINE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    TOKLINE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Launch(device.params(), {.stream = stream});
    PagedPrefillParams without_lse = device.params();
    without_lse.lse_ln = nullptr;
    Launch(without_lse, {.stream = stream, .dependent = true});
    TOKLINE_CUDA(cudaStreamEndCapture(stream, &graph));
    TOKLINE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 3; ++round) {
      device.ClearOutput();
      TOKLINE_CUDA(cudaGraphLaunch(executable, stream));
      TOKLINE_CUDA(cudaStreamSynchronize(stream));
      EXPECT_EQ(device.Out(), plain.out);
      EXPECT_EQ(device.Lse(), plain.lse);
    }
    TOKLINE_CUDA(cudaGraphExecDestroy(executable));
    TOKLINE_CUDA(cudaGraphDestroy(graph));
    TOKLINE_CUDA(cudaStreamDestroy(stream));
  }
}

TEST_P(PagedPrefillCudaTest, PoolBeyondFourGigaElementsGivesTheSameBits) {
  PrefillCase problem({.num_kv_heads = 2, .head_dim = 128, .sequences = Ragged()});
  const int64_t first_page = (int64_t{1} << 32) / problem.layout.PageStride() + 1;
  const int64_t needed =
      (first_page + problem.layout.num_pages) * problem.layout.PageStride() * 2 + (1 << 28);
  size_t free = 0, total = 0;
  TOKLINE_CUDA(cudaMemGetInfo(&free, &total));
  if (static_cast<int64_t>(free) < needed) {
    GTEST_SKIP() << needed << " bytes of device memory needed, " << free << " free";
  }
  const Output small = RunOnDevice(problem);
  DeviceCase far(problem, first_page);
  Launch(far.params(), {});
  EXPECT_EQ(far.Out(), small.out);
  EXPECT_EQ(far.Lse(), small.lse);
}

TEST_P(PagedPrefillCudaTest, MoreTilesThanTheSmallGridDimensionsHold) {
  constexpr int32_t kSequences = 70'000;
  PrefillCase problem({.num_kv_heads = 1, .group = 1, .row_padding = 0, .sequences = {{{1}, 1}}});
  const int64_t page = problem.table.View().chunk_pages[0];
  for (int32_t s = 1; s < kSequences; ++s) {
    problem.table.AddSequence(std::vector<int32_t>{0});
    problem.q_indptr.push_back(s + 1);
  }
  problem.q = HostTensor(problem.spec.dtype, kSequences * problem.q_stride);
  problem.out = problem.q;
  problem.lse.assign(kSequences, 0);
  const Output actual = RunOnDevice(problem);
  for (int64_t i = 0; i < actual.out.size(); ++i) {
    ASSERT_EQ(actual.out[i], problem.kv[problem.layout.ValueOffset(page, 0, 0) + i % 64]) << i;
  }
}

TEST_P(PagedPrefillCudaTest, BatchWithoutNewTokensLaunchesNothing) {
  PagedPrefillParams params{.num_q_heads = 2, .scale = 1};
  params.layout = {.num_pages = 0, .num_kv_heads = 1, .page_size = 16, .head_dim = 64};
  EXPECT_NO_THROW(Launch(params, {}));
}

TEST_P(PagedPrefillCudaTest, RejectsWhatItCannotRun) {
  PrefillCase problem({.sequences = Ragged()});
  DeviceCase device(problem);
  const auto rejects = [&](auto&& spoil) {
    PagedPrefillParams params = device.params();
    spoil(params);
    EXPECT_THROW(Launch(params, {}), InvalidArgument);
  };
  rejects([](auto& p) { p.dtype = DType::kF32; });
  rejects([](auto& p) { p.tile_tokens += 1; });
  rejects([](auto& p) { p.num_tiles = 0; });
  rejects([](auto& p) { p.tiles = nullptr; });
  rejects([](auto& p) {
    p.tiles = reinterpret_cast<const PagedPrefillTile*>(reinterpret_cast<uintptr_t>(p.tiles) + 8);
  });
  rejects([](auto& p) { p.num_blocks = 0; });
  rejects([](auto& p) { p.num_blocks = p.num_tiles + 1; });
  rejects([](auto& p) { p.num_parts = 1; });
  rejects([](auto& p) { p.layout.head_dim = 80; });
  EXPECT_EQ(device.Out()[0] == device.Out()[0], false) << "a rejected launch wrote its output";
}

}  // namespace
}  // namespace tokline
