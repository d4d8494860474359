// kv_append without a device: addresses in both layouts, norm and RoPE of the reference, the
// grouping of rows, cost, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/tests/kernels/kv_append_case.h"
#include "kernels/kv_append/kv_append_plan.h"
#include "reference/kv_append.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::KvAppendCase;
using testing::KvAppendShape;
using ::testing::ThrowsMessage;

// The layout's address, computed independently from its definition.
int64_t PoolIndex(const KvAppendCase& c, int kv, int64_t slot, int32_t head, int32_t column) {
  const int64_t page = slot / c.shape.page_size, row = slot % c.shape.page_size;
  const int64_t heads = c.shape.num_kv_heads, rows = c.shape.page_size, dim = c.shape.head_dim;
  return c.shape.order == KvOrder::kHnd
             ? (((page * 2 + kv) * heads + head) * rows + row) * dim + column
             : (((page * 2 + kv) * rows + row) * heads + head) * dim + column;
}

class KvAppendOrderTest : public ::testing::TestWithParam<std::tuple<KvOrder, int32_t, DType>> {};

TEST_P(KvAppendOrderTest, PlainAppendPutsEachRowAtItsSlotAndNothingElse) {
  const auto [order, page_size, dtype] = GetParam();
  KvAppendCase c({.dtype = dtype, .page_size = page_size, .order = order});
  c.slots[3] = -1;
  HostTensor expected = c.pool;
  for (int64_t t = 0; t < c.shape.num_tokens; ++t) {
    if (c.slots[t] < 0) continue;
    for (int32_t h = 0; h < c.shape.num_kv_heads; ++h) {
      for (int32_t i = 0; i < c.shape.head_dim; ++i) {
        const int64_t k_column = (c.shape.num_q_heads + h) * c.shape.head_dim + i;
        const int64_t v_column = k_column + c.shape.num_kv_heads * c.shape.head_dim;
        expected.Set(PoolIndex(c, 0, c.slots[t], h, i), c.Input(t, k_column));
        expected.Set(PoolIndex(c, 1, c.slots[t], h, i), c.Input(t, v_column));
      }
    }
  }
  KvAppendReference(c.Params());
  EXPECT_EQ(c.pool.bytes(), expected.bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, KvAppendOrderTest,
    ::testing::Combine(::testing::Values(KvOrder::kHnd, KvOrder::kNhd), ::testing::Values(16, 32),
                       ::testing::Values(DType::kF32, DType::kBf16, DType::kF16)));

// A padding slot of -1 must not write to the last slot of the pool, but the query row is still due.
TEST(KvAppendTest, SlotMinusOneWritesNoKeyOrValueButTransformsTheQuery) {
  KvAppendCase c({.norm = true, .rope = true});
  const HostTensor untouched = c.pool;
  std::fill(c.slots.begin(), c.slots.end(), -1);
  KvAppendReference(c.Params());
  EXPECT_EQ(c.pool.bytes(), untouched.bytes());

  KvAppendCase written({.norm = true, .rope = true});
  KvAppendReference(written.Params());
  EXPECT_EQ(c.q_out.bytes(), written.q_out.bytes());
}

// A weight of 96.5 shows whether bf16 rounding happens after the norm weight instead of before it.
TEST(KvAppendTest, NormalisedValueIsRoundedBeforeItMeetsTheWeight) {
  KvAppendCase c({.num_tokens = 1, .num_q_heads = 1, .norm = true});
  for (int32_t i = 0; i < c.shape.head_dim; ++i) c.k_weight.Set(i, 96.5);
  KvAppendReference(c.Params());
  double squares = 0;
  const int64_t first = c.shape.num_q_heads * c.shape.head_dim;
  for (int32_t i = 0; i < c.shape.head_dim; ++i) {
    squares += c.Input(0, first + i) * c.Input(0, first + i);
  }
  int misplaced_differs = 0;
  for (int32_t i = 0; i < c.shape.head_dim; ++i) {
    const double x = c.Input(0, first + i) / std::sqrt(squares / c.shape.head_dim + double{1e-6f});
    const double stored = c.pool[PoolIndex(c, 0, c.slots[0], 0, i)];
    EXPECT_EQ(stored, RoundTo(DType::kBf16, RoundTo(DType::kBf16, x) * 96.5)) << "element " << i;
    misplaced_differs += stored != RoundTo(DType::kBf16, x * 96.5);
  }
  EXPECT_GT(misplaced_differs, 10) << "the case cannot tell the two roundings apart";
}

TEST(KvAppendTest, RopeRotatesElementsHalfAHeadApart) {
  KvAppendCase c({.dtype = DType::kF32, .num_tokens = 1, .num_q_heads = 1, .rope = true});
  for (int32_t i = 0; i < c.shape.head_dim; ++i) c.qkv.Set(i, i == 5 ? 1 : 0);
  c.positions[0] = 7;
  KvAppendReference(c.Params());
  const int32_t half = c.shape.head_dim / 2;
  const float* const pairs = &c.rope[static_cast<size_t>(7 * c.shape.head_dim)];
  for (int32_t i = 0; i < c.shape.head_dim; ++i) {
    const double expected = i == 5 ? pairs[10] : i == 5 + half ? pairs[11] : 0;
    EXPECT_EQ(c.q_out[i], expected) << "element " << i;
  }
}

TEST(KvAppendTest, RopeScoresDependOnTheDistanceOfPositionsOnly) {
  const auto score = [](int32_t q_position, int32_t k_position) {
    KvAppendCase c(
        {.dtype = DType::kF32, .num_tokens = 1, .num_q_heads = 1, .norm = true, .rope = true});
    const auto rotated = [&c](int32_t position) {
      c.positions[0] = position;
      KvAppendReference(c.Params());
    };
    rotated(q_position);
    const HostTensor q = c.q_out;
    rotated(k_position);
    double sum = 0;
    for (int32_t i = 0; i < c.shape.head_dim; ++i) {
      sum += q[i] * c.pool[PoolIndex(c, 0, c.slots[0], 0, i)];
    }
    return sum;
  };
  EXPECT_NEAR(score(40, 31), score(500, 491), 1e-5 * std::abs(score(40, 31)) + 1e-2);
  EXPECT_GT(std::abs(score(40, 31) - score(40, 11)), 1);
}

TEST(KvAppendTest, PositionZeroLeavesValuesAsTheyAre) {
  KvAppendCase plain({}), rotated({.rope = true});
  std::fill(rotated.positions.begin(), rotated.positions.end(), 0);
  KvAppendReference(plain.Params());
  KvAppendReference(rotated.Params());
  EXPECT_EQ(plain.pool.bytes(), rotated.pool.bytes());
  EXPECT_EQ(plain.q_out.bytes(), rotated.q_out.bytes());
}

TEST(KvAppendTest, QueryInPlaceEqualsQueryElsewhere) {
  KvAppendCase elsewhere({.norm = true, .rope = true}), in_place({.norm = true, .rope = true});
  KvAppendReference(elsewhere.Params());
  KvAppendParams params = in_place.Params();
  params.q_out = in_place.qkv.data();
  params.q_out_stride = params.q_in_stride;
  KvAppendReference(params);
  for (int64_t t = 0; t < in_place.shape.num_tokens; ++t) {
    for (int64_t i = 0; i < elsewhere.Params().q_out_stride; ++i) {
      ASSERT_EQ(in_place.Input(t, i), elsewhere.q_out[t * elsewhere.Params().q_out_stride + i]);
    }
  }
  EXPECT_EQ(in_place.pool.bytes(), elsewhere.pool.bytes());
}

// A degenerate stride of a size-1 dimension is never used.
// The bound of an element has room for a rotation's other element, and one value of 200 may differ.
TEST(KvAppendTest, RowWhoseElementsAreAllOffWithinTheirBoundsIsRejected) {
  KvAppendCase c({.num_tokens = 60, .norm = true, .rope = true});
  KvAppendReference(c.Params());
  KvAppendParams in_fp32 = c.Params();
  HostTensor with_error = c.q_out;
  in_fp32.q_out = with_error.data();
  in_fp32.norm_eps += 0x1p-20f * 0.25f;  // of the mean square, so its root is off by 2^-21
  KvAppendReference(in_fp32);
  EXPECT_TRUE(testing::RowsMatch(with_error, c.q_out, c.shape));

  HostTensor wrong = c.q_out;
  for (int64_t i = 100 * c.shape.head_dim; i < 101 * c.shape.head_dim; ++i) {
    wrong.Set(i, wrong[i] * (1 + 2 * Epsilon(c.shape.dtype)));
  }
  EXPECT_THAT(testing::RowsMatch(wrong, c.q_out, c.shape).message(), HasSubstr("(row 100)"));
}

TEST(KvAppendTest, OneTokenNeedsNoStrides) {
  KvAppendCase c({.num_tokens = 1, .norm = true}), expected({.num_tokens = 1, .norm = true});
  KvAppendParams params = c.Params();
  params.q_in_stride = params.q_out_stride = params.k_stride = params.v_stride = 1;
  KvAppendReference(params);
  KvAppendReference(expected.Params());
  EXPECT_EQ(c.pool.bytes(), expected.pool.bytes());
  EXPECT_EQ(c.q_out.bytes(), expected.q_out.bytes());
}

// Counts what a naive implementation reads, writes and computes by executing it.
TEST(KvAppendTest, CostMatchesBruteForceCount) {
  for (const bool norm : {false, true}) {
    for (const bool rope : {false, true}) {
      KvAppendCase c({.norm = norm, .rope = rope});
      std::iota(c.positions.begin(), c.positions.end(), 100);  // distinct, as in a sequence
      double read = 0, written = 0, flops = 0;
      std::set<int32_t> table_rows;
      for (int64_t t = 0; t < c.shape.num_tokens; ++t) {
        read += 8;
        if (rope) read += 4;
        if (rope && table_rows.insert(c.positions[t]).second) {
          for (int32_t i = 0; i < c.shape.head_dim / 2; ++i) read += 8;
        }
        for (int32_t h = 0; h < c.shape.num_q_heads + 2 * c.shape.num_kv_heads; ++h) {
          const bool value = h >= c.shape.num_q_heads + c.shape.num_kv_heads;
          for (int32_t i = 0; i < c.shape.head_dim; ++i) {
            read += 2;
            written += 2;
            if (norm && !value) flops += 4;                              // x*x, +, *scale, *weight
            if (rope && !value && i < c.shape.head_dim / 2) flops += 6;  // four *, two +
          }
        }
      }
      if (norm) read += 2 * 2 * c.shape.head_dim;  // both weights
      const Cost cost = CostOf(c.Params());
      EXPECT_EQ(cost.read_bytes, read);
      EXPECT_EQ(cost.write_bytes, written);
      EXPECT_EQ(cost.flops, flops);
    }
  }
}

TEST(KvAppendTest, PlanGivesQueryRowsOnlyWhereTheQueryChanges) {
  KvAppendCase c({});
  KvAppendParams params = c.Params();
  EXPECT_EQ(PlanKvAppend(params).op, RowOp::kCopy);
  EXPECT_EQ(PlanKvAppend(params).groups_per_token, 10);
  params.q_out = c.qkv.data();
  params.q_out_stride = params.q_in_stride;
  EXPECT_EQ(PlanKvAppend(params).num_q_rows, 0);
  EXPECT_EQ(CostOf(params).write_bytes, 37.0 * 4 * 128 * 2);
  params.rope_cos_sin = c.rope.data();
  EXPECT_EQ(PlanKvAppend(params).op, RowOp::kTransform);
  EXPECT_EQ(PlanKvAppend(params).num_q_rows, 6);
}

TEST(KvAppendTest, PlanGroupsRowsOfOneKindWhereTheyAreMany) {
  KvAppendParams params{.num_tokens = 1, .num_q_heads = 15, .layout = {.num_kv_heads = 5}};
  float table = 0;
  params.rope_cos_sin = &table;
  const KvAppendPlan few = PlanKvAppend(params);
  EXPECT_EQ(few.rows_per_group, 1);
  EXPECT_EQ(few.groups_per_token, 25);
  params.num_tokens = kKvAppendManyRows / 25 + 1;
  const KvAppendPlan many = PlanKvAppend(params);
  EXPECT_EQ(many.rows_per_group, 2);
  EXPECT_EQ(many.q_groups, 8);  // the last group has one row
  EXPECT_EQ(many.kv_groups, 3);
  EXPECT_EQ(many.groups_per_token, 14);
  --params.num_tokens;
  EXPECT_EQ(PlanKvAppend(params).rows_per_group, 1);
  params.num_tokens = kKvAppendManyRows;
  params.num_q_heads = 0;
  params.layout.num_kv_heads = 1;  // nothing to group
  EXPECT_EQ(PlanKvAppend(params).rows_per_group, 1);
}

TEST(KvAppendTest, NoTokensIsValidAndCostsNothing) {
  KvAppendParams params{.layout = {.num_pages = 0, .num_kv_heads = 2, .head_dim = 64}};
  EXPECT_NO_THROW(KvAppendReference(params));
  EXPECT_EQ(CostOf(params).Bytes(), 0);
}

template <typename Change>
void ExpectRejected(const Change& change, const char* message) {
  KvAppendCase c({.norm = true, .rope = true});
  KvAppendParams params = c.Params();
  change(params);
  EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(KvAppendTest, InvalidParamsAreRefusedWithTheirValues) {
  ExpectRejected([](auto& p) { p.num_tokens = -1; }, "num_tokens is -1");
  ExpectRejected([](auto& p) { p.num_tokens = 1'000'000'000; }, "1000000000 tokens of 10 rows");
  ExpectRejected([](auto& p) { p.num_q_heads = -2; }, "num_q_heads is -2");
  ExpectRejected([](auto& p) { p.layout.head_dim = 80; }, "head_dim is 80");
  ExpectRejected([](auto& p) { p.layout.page_size = 24; }, "page_size is 24");
  ExpectRejected([](auto& p) { p.k = nullptr; }, "k is null with 37 tokens");
  ExpectRejected([](auto& p) { p.v_stride = 100; }, "v_stride is 100; rows of 2 heads need 256");
  ExpectRejected([](auto& p) { p.k_stride += 4; }, "it must be a multiple of 8");
  ExpectRejected([](auto& p) { p.q_in = static_cast<const char*>(p.q_in) + 2; }, "16 B aligned");
  ExpectRejected([](auto& p) { p.kv = static_cast<char*>(p.kv) + 8; }, "16 B aligned");
  ExpectRejected([](auto& p) { p.q_out = const_cast<void*>(p.q_in); },
                 "q_in and q_out are one tensor");
  ExpectRejected([](auto& p) { p.slots = nullptr; }, "slots is null");
  ExpectRejected([](auto& p) { p.positions = nullptr; }, "positions is null");
  ExpectRejected([](auto& p) { p.rope_rows = 0; }, "rope_rows is 0");
  ExpectRejected([](auto& p) { p.norm_eps = -1; }, "norm_eps is -1");
}

TEST(KvAppendTest, SlotsAndPositionsOutsideTheirTablesAreRefused) {
  KvAppendCase c({.rope = true});
  const auto check = [&] { ValidateSlots(c.Params(), c.slots.data(), c.positions.data()); };
  EXPECT_NO_THROW(check());
  c.slots[2] = c.layout.NumSlots();
  EXPECT_THAT(check, ThrowsMessage<InvalidArgument>(HasSubstr("token 2 has slot 80; allowed are")));
  c.slots[2] = -2;
  EXPECT_THAT(check, ThrowsMessage<InvalidArgument>(HasSubstr("token 2 has slot -2")));
  c.slots[2] = -1;
  c.positions[4] = 509;
  EXPECT_THAT(check, ThrowsMessage<InvalidArgument>(HasSubstr("token 4 has position 509")));
}

}  // namespace
}  // namespace tokline
