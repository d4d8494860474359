// paged_gather without a device: the order of rows, tiles, cost, and tables that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "harness/tests/kernels/paged_gather_case.h"
#include "kernels/paged_gather/paged_gather_plan.h"
#include "reference/paged_gather.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::PagedGatherCase;
using ::testing::ThrowsMessage;

class PagedGatherLayoutTest : public ::testing::TestWithParam<std::tuple<KvOrder, int32_t, DType>> {
};

TEST_P(PagedGatherLayoutTest, RowsComeInSequenceOrderWithSharedAndEmptyChunks) {
  const auto [order, page_size, dtype] = GetParam();
  PagedGatherCase c({.dtype = dtype, .page_size = page_size, .order = order});
  PagedGatherReference(c.Params());
  int64_t at = 0;
  for (const auto& chunks : c.sequence_chunks) {
    for (const int32_t chunk : chunks) {
      for (int32_t t = 0; t < c.chunk_lengths[static_cast<size_t>(chunk)]; ++t) {
        for (int32_t h = 0; h < c.shape.num_kv_heads; ++h) {
          for (int32_t i = 0; i < c.shape.head_dim; ++i, ++at) {
            ASSERT_EQ(c.k_out[at], PagedGatherCase::ValueOf(chunk, t, h, i, 0)) << "index " << at;
            ASSERT_EQ(c.v_out[at], PagedGatherCase::ValueOf(chunk, t, h, i, 1)) << "index " << at;
          }
        }
      }
    }
  }
  EXPECT_EQ(at, c.k_out.size());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PagedGatherLayoutTest,
    ::testing::Combine(::testing::Values(KvOrder::kHnd, KvOrder::kNhd), ::testing::Values(16, 64),
                       ::testing::Values(DType::kF32, DType::kBf16, DType::kF16)));

TEST(PagedGatherTest, PermutingPagesChangesNothing) {
  PagedGatherCase one({.seed = 1}), other({.seed = 2});
  ASSERT_NE(one.pool.bytes(), other.pool.bytes());
  PagedGatherReference(one.Params());
  PagedGatherReference(other.Params());
  EXPECT_EQ(one.k_out.bytes(), other.k_out.bytes());
  EXPECT_EQ(one.v_out.bytes(), other.v_out.bytes());
}

TEST(PagedGatherTest, CostMatchesBruteForceCount) {
  PagedGatherCase c({.sequences = {{48}, {32}}});
  double kv_bytes = 0, page_ids = 0;
  for (const auto& chunks : c.sequence_chunks) {
    for (const int32_t chunk : chunks) {
      for (int32_t t = 0; t < c.chunk_lengths[static_cast<size_t>(chunk)]; ++t) {
        if (t % c.shape.page_size == 0) ++page_ids;
        for (int32_t h = 0; h < c.shape.num_kv_heads; ++h) {
          for (int32_t i = 0; i < c.shape.head_dim; ++i) kv_bytes += 2 * 2;
        }
      }
    }
  }
  const Cost cost = CostOf(c.Params());
  EXPECT_EQ(cost.read_bytes, kv_bytes + 4 * page_ids);
  EXPECT_EQ(cost.write_bytes, kv_bytes);
  EXPECT_EQ(cost.flops, 0);
}

TEST(PagedGatherTest, TilesHoldThirtyTwoKibibytesWhereTokensAllowIt) {
  const auto tile = [](int32_t heads, int32_t head_dim) {
    return GatherTileTokens({.layout = {.num_kv_heads = heads, .head_dim = head_dim}});
  };
  EXPECT_EQ(tile(8, 128), 8);
  EXPECT_EQ(tile(5, 128), 8);  // 12 tokens fit, rounded down to a power of two
  EXPECT_EQ(tile(1, 64), 128);
  EXPECT_EQ(tile(1, 128), 64);
  EXPECT_EQ(tile(128, 128), 1);
}

TEST(PagedGatherTest, NoTokensIsValidAndCostsNothing) {
  PagedGatherCase c({.sequences = {{}, {0}}});
  EXPECT_NO_THROW(PagedGatherReference(c.Params()));
  EXPECT_EQ(CostOf(c.Params()).Bytes(), 0);
}

template <typename Change>
void ExpectRejected(const Change& change, const char* message) {
  PagedGatherCase c({});
  PagedGatherParams params = c.Params();
  change(params);
  EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(PagedGatherTest, InvalidParamsAreRefusedWithTheirValues) {
  ExpectRejected([](auto& p) { p.total_tokens = -5; }, "total_tokens is -5");
  ExpectRejected([](auto& p) { p.total_tokens = int64_t{1} << 31; }, "total_tokens is 2147483648");
  ExpectRejected([](auto& p) { p.layout.head_dim = 96; }, "head_dim is 96");
  ExpectRejected([](auto& p) { p.table.num_seqs = 0; }, "the table has 0 sequences");
  ExpectRejected([](auto& p) { p.table.chunk_pages = nullptr; }, "lacks an array");
  ExpectRejected([](auto& p) { p.token_indptr = nullptr; }, "token_indptr is null");
  ExpectRejected([](auto& p) { p.k_out = static_cast<char*>(p.k_out) + 2; }, "k_out is at");
  ExpectRejected([](auto& p) { p.v_out = nullptr; }, "v_out is at");
  ExpectRejected([](auto& p) { p.kv = nullptr; }, "kv is at");
}

TEST(PagedGatherTest, LengthsThatContradictTheTableAreRefused) {
  PagedGatherCase c({});
  const auto check = [&] {
    ValidateTokenRows(c.table.View(), c.token_indptr.data(), c.layout, c.Params().total_tokens);
  };
  EXPECT_NO_THROW(check());
  ++c.token_indptr[1];
  EXPECT_THAT(check, ThrowsMessage<InvalidArgument>(
                         HasSubstr("sequence 0 55 rows; its chunks hold 54 tokens")));
  --c.token_indptr[1];
  c.layout.num_pages = 3;  // page ids are checked against it
  EXPECT_THAT(check, ThrowsMessage<InvalidArgument>(HasSubstr("the pool has pages 0 to 2")));
}

}  // namespace
}  // namespace tokline
