// Embedding without a device: copied rows, sums with positions, zeros for unknown ids, cost, and
// what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/kernels/check.h"
#include "kernels/common/error.h"
#include "reference/embedding.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using ::testing::ThrowsMessage;

class EmbeddingDTypeTest : public ::testing::TestWithParam<DType> {};

TEST_P(EmbeddingDTypeTest, RowsAreCopiedAndUnknownIdsGiveZeros) {
  const HostTensor table = testing::IntegerTensor(GetParam(), 11 * 24, 1, -100, 100);
  const std::vector<int32_t> ids = {10, 0, -1, 10, 11, 3, INT32_MIN};
  for (const int32_t first_id : {0, 5}) {
    HostTensor out(GetParam(), static_cast<int64_t>(ids.size()) * 24);
    out.FillNan();
    EmbeddingReference({.dtype = GetParam(),
                        .num_tokens = static_cast<int64_t>(ids.size()),
                        .vocab_size = 11,
                        .hidden_size = 24,
                        .first_id = first_id,
                        .token_ids = ids.data(),
                        .table = table.data(),
                        .out = out.data()});
    for (size_t t = 0; t < ids.size(); ++t) {
      const int64_t row = int64_t{ids[t]} - first_id;
      for (int64_t i = 0; i < 24; ++i) {
        const bool known = row >= 0 && row < 11;
        EXPECT_EQ(out[static_cast<int64_t>(t) * 24 + i], known ? table[row * 24 + i] : 0)
            << "id " << ids[t] << ", the first is " << first_id;
      }
    }
  }
}

TEST_P(EmbeddingDTypeTest, PositionRowsAreAddedWithOneRounding) {
  const HostTensor table = testing::RandomTensor(GetParam(), 5 * 16, 1);
  const HostTensor places = testing::RandomTensor(GetParam(), 3 * 16, 2);
  const std::vector<int32_t> ids = {4, 0, 2, 5, 1, -1}, positions = {2, 2, 0, 1, 3, -1};
  HostTensor out(GetParam(), 6 * 16);
  out.FillNan();
  EmbeddingReference({.dtype = GetParam(),
                      .num_tokens = 6,
                      .vocab_size = 5,
                      .hidden_size = 16,
                      .token_ids = ids.data(),
                      .table = table.data(),
                      .num_positions = 3,
                      .positions = positions.data(),
                      .position_table = places.data(),
                      .out = out.data()});
  for (int64_t t = 0; t < 6; ++t) {
    const bool known = t < 3;  // after these, the id, the position, and both are out of range
    for (int64_t i = 0; i < 16; ++i) {
      const auto row = static_cast<size_t>(t);
      const double sum = known ? table[ids[row] * 16 + i] + places[positions[row] * 16 + i] : 0;
      EXPECT_EQ(out[t * 16 + i], RoundTo(GetParam(), sum)) << "token " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, EmbeddingDTypeTest,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF16));

TEST(EmbeddingTest, CostMatchesBruteForceCount) {
  double read = 0, written = 0;
  for (int token = 0; token < 5; ++token) {  // distinct ids
    read += 4;
    for (int i = 0; i < 64; ++i) {
      read += 2;
      written += 2;
    }
  }
  const Cost cost = CostOf({.num_tokens = 5, .vocab_size = 100, .hidden_size = 64});
  EXPECT_EQ(cost.read_bytes, read);
  EXPECT_EQ(cost.write_bytes, written);
  EXPECT_EQ(cost.flops, 0);
  // More tokens than rows: each row is read once.
  EXPECT_EQ(CostOf({.num_tokens = 500, .vocab_size = 100, .hidden_size = 64}).read_bytes,
            500.0 * 4 + 100 * 128);
}

TEST(EmbeddingTest, CostOfPositionsMatchesBruteForceCount) {
  char table = 0;
  EmbeddingParams params{.num_tokens = 5,
                         .vocab_size = 100,
                         .hidden_size = 64,
                         .num_positions = 50,
                         .position_table = &table};
  double read = 0, flops = 0;
  for (int token = 0; token < 5; ++token) {  // distinct ids and positions
    read += 4 + 4;
    for (int i = 0; i < 64; ++i) {
      read += 2 + 2;
      flops += 1;
    }
  }
  EXPECT_EQ(CostOf(params).read_bytes, read);
  EXPECT_EQ(CostOf(params).flops, flops);
  params.num_positions = 3;  // each row is read once
  EXPECT_EQ(CostOf(params).read_bytes, read - 2 * 128);
}

template <typename Change>
void ExpectRejected(const Change& change, const char* message) {
  alignas(16) char memory[64] = {};
  const int32_t id = 0;
  EmbeddingParams params{.num_tokens = 1,
                         .vocab_size = 2,
                         .hidden_size = 8,
                         .token_ids = &id,
                         .table = memory,
                         .out = memory + 32};
  EXPECT_NO_THROW(Validate(params));
  change(params);
  EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(EmbeddingTest, InvalidParamsAreRefusedWithTheirValues) {
  ExpectRejected([](auto& p) { p.num_tokens = -1; }, "num_tokens is -1");
  ExpectRejected([](auto& p) { p.vocab_size = -3; }, "vocab_size is -3");
  ExpectRejected([](auto& p) { p.vocab_size = int64_t{1} << 31; }, "vocab_size is 2147483648");
  ExpectRejected([](auto& p) { p.first_id = -1; }, "first_id is -1");
  ExpectRejected([](auto& p) { p.hidden_size = 12; }, "hidden_size is 12");  // not a multiple of a
                                                                             // vector
  ExpectRejected([](auto& p) { p.hidden_size = 0; }, "hidden_size is 0");
  ExpectRejected([](auto& p) { p.num_tokens = int64_t{1} << 44; }, "exceeds");
  ExpectRejected([](auto& p) { p.token_ids = nullptr; }, "token_ids is null");
  ExpectRejected([](auto& p) { p.table = nullptr; }, "table is at");
  ExpectRejected([](auto& p) { p.out = static_cast<char*>(p.out) + 8; }, "out is at");
  ExpectRejected([](auto& p) { p.num_positions = 4; }, "num_positions is 4 with position_table 0");
  ExpectRejected([](auto& p) { p.num_positions = -1; }, "num_positions is -1");
  ExpectRejected([](auto& p) { p.position_table = p.table; }, "give both or neither");
  ExpectRejected(
      [](auto& p) {
        p.position_table = p.table;
        p.num_positions = 2;
      },
      "positions is null");
}

TEST(EmbeddingTest, NoTokensIsValid) {
  EXPECT_NO_THROW(EmbeddingReference({.vocab_size = 2, .hidden_size = 8}));
}

}  // namespace
}  // namespace tokline
