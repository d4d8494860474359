// kv_append on the device: copies have the bits of the reference, QK-norm and RoPE lie within its
// bounds, and a token does not depend on its batch.
#include <gmock/gmock.h>

#include <algorithm>
#include <tuple>

#include "harness/tests/kernels/cuda_test.h"
#include "harness/tests/kernels/kv_append_case.h"
#include "kernels/kv_append/kv_append_plan.h"
#include "reference/kv_append.h"

namespace tokline {
namespace {

using testing::HostTensor;
using testing::KvAppendCase;
using testing::KvAppendShape;
using testing::RowsMatch;

class KvAppendCudaTest : public testing::CudaTest {};

struct AppendOutputs {
  HostTensor q_out, pool;
};

// Runs the case on the device and leaves its host tensors unchanged.
AppendOutputs RunOnDevice(KvAppendCase& c, bool in_place = false, bool dependent = false) {
  KvAppendParams params = c.Params();
  const DeviceBuffer qkv = testing::ToDevice(c.qkv), q_out = testing::ToDevice(c.q_out),
                     pool = testing::ToDevice(c.pool), q_weight = testing::ToDevice(c.q_weight),
                     k_weight = testing::ToDevice(c.k_weight), slots(c.slots),
                     positions(c.positions), rope(c.rope);
  const auto moved = [&](const void* host) {
    return qkv.as<char>() + (static_cast<const char*>(host) - static_cast<char*>(c.qkv.data()));
  };
  params.q_in = moved(params.q_in);
  params.q_out = q_out.data();
  if (in_place) {
    params.q_out = qkv.data();
    params.q_out_stride = params.q_in_stride;
  }
  params.k = moved(params.k);
  params.v = moved(params.v);
  params.kv = pool.data();
  params.slots = slots.as<int64_t>();
  params.positions = positions.as<int32_t>();
  if (params.q_norm_weight) params.q_norm_weight = q_weight.data();
  if (params.k_norm_weight) params.k_norm_weight = k_weight.data();
  if (params.rope_cos_sin) params.rope_cos_sin = rope.as<float>();
  Launch(params, {.dependent = dependent});
  return {testing::ToHost(in_place ? qkv : q_out, c.shape.dtype),
          testing::ToHost(pool, c.shape.dtype)};
}

// Each token has 13 rows, an odd number per kind. There are enough tokens for the kernel to group
// rows.
constexpr int64_t kManyTokens = kKvAppendManyRows / 13 + 1;

TEST_F(KvAppendCudaTest, PlainAppendIsBitwiseAndLeavesTheRestOfThePoolAlone) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const KvOrder order : {KvOrder::kHnd, KvOrder::kNhd}) {
      for (const int32_t head_dim : {64, 128}) {
        for (const int32_t page_size : {16, 64, 256}) {
          for (const int64_t tokens : {int64_t{1}, int64_t{7}, kManyTokens}) {
            KvAppendCase c({.dtype = dtype,
                            .num_tokens = tokens,
                            .num_q_heads = 3,
                            .num_kv_heads = 5,
                            .head_dim = head_dim,
                            .page_size = page_size,
                            .order = order});
            if (tokens > 1) c.slots[1] = -1;  // must not reach the last slot
            ASSERT_EQ(PlanKvAppend(c.Params()).rows_per_group, tokens == kManyTokens ? 2 : 1);
            const AppendOutputs actual = RunOnDevice(c);
            KvAppendReference(c.Params());
            ASSERT_EQ(actual.pool.bytes(), c.pool.bytes())
                << Name(dtype) << " head_dim " << head_dim << " page_size " << page_size
                << " tokens " << tokens;
            ASSERT_EQ(actual.q_out.bytes(), c.q_out.bytes());
          }
        }
      }
    }
  }
}

class KvAppendTransformCudaTest
    : public KvAppendCudaTest,
      public ::testing::WithParamInterface<std::tuple<DType, int32_t, KvOrder, bool, bool>> {};

TEST_P(KvAppendTransformCudaTest, NormAndRopeMatchReference) {
  const auto [dtype, head_dim, order, norm, rope] = GetParam();
  for (const int64_t tokens : {int64_t{1}, int64_t{9}, kManyTokens}) {
    KvAppendCase c({.dtype = dtype,
                    .num_tokens = tokens,
                    .num_q_heads = 7,
                    .num_kv_heads = 3,
                    .head_dim = head_dim,
                    .page_size = 32,
                    .order = order,
                    .norm = norm,
                    .rope = rope,
                    .seed = static_cast<uint64_t>(tokens)});
    if (tokens > 1) c.slots[0] = -1;
    ASSERT_EQ(PlanKvAppend(c.Params()).rows_per_group, tokens == kManyTokens ? 2 : 1);
    const AppendOutputs actual = RunOnDevice(c);
    const AppendOutputs in_place = RunOnDevice(c, true, true);
    KvAppendReference(c.Params());
    EXPECT_TRUE(RowsMatch(actual.q_out, c.q_out, c.shape));
    EXPECT_TRUE(RowsMatch(actual.pool, c.pool, c.shape));
    EXPECT_EQ(in_place.pool.bytes(), actual.pool.bytes());
    const int64_t q_row = int64_t{c.shape.num_q_heads} * head_dim;
    for (int64_t i = 0; i < tokens * q_row; ++i) {
      ASSERT_EQ(in_place.q_out[i / q_row * c.row_elements + i % q_row], actual.q_out[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, KvAppendTransformCudaTest,
                         ::testing::Combine(::testing::Values(DType::kBf16, DType::kF16),
                                            ::testing::Values(64, 128),
                                            ::testing::Values(KvOrder::kHnd, KvOrder::kNhd),
                                            ::testing::Bool(), ::testing::Bool()));

// Quarter turns are exact in every format, so small integers must be reproduced bit by bit.
TEST_F(KvAppendCudaTest, QuarterTurnsOfIntegersAreBitwise) {
  KvAppendCase c({.rope = true});
  c.qkv = testing::IntegerTensor(c.shape.dtype, c.qkv.size(), 3, 1, 100);
  for (size_t i = 0; i < c.rope.size(); i += 2) {
    const int quarter = static_cast<int>(i / 2 % 4);
    c.rope[i] = quarter == 0 ? 1.0f : quarter == 2 ? -1.0f : 0.0f;
    c.rope[i + 1] = quarter == 1 ? 1.0f : quarter == 3 ? -1.0f : 0.0f;
  }
  const AppendOutputs actual = RunOnDevice(c);
  KvAppendReference(c.Params());
  for (int64_t i = 0; i < c.q_out.size(); ++i) ASSERT_EQ(actual.q_out[i], c.q_out[i]);
  EXPECT_TRUE(RowsMatch(actual.pool, c.pool, c.shape));
}

// In fp16 the sum of squares would overflow; in fp32 it does not.
TEST_F(KvAppendCudaTest, LargeHalfValuesSurviveTheNorm) {
  KvAppendCase c({.dtype = DType::kF16, .norm = true});
  for (int64_t i = 0; i < c.qkv.size(); ++i) c.qkv.Set(i, i % 2 ? 60000 : -50000);
  const AppendOutputs actual = RunOnDevice(c);
  KvAppendReference(c.Params());
  EXPECT_TRUE(RowsMatch(actual.q_out, c.q_out, c.shape));
  EXPECT_TRUE(RowsMatch(actual.pool, c.pool, c.shape));
}

TEST_F(KvAppendCudaTest, TokenDoesNotDependOnItsBatch) {
  // Rows are grouped in the batch but not in a single-token launch.
  KvAppendCase batch({.num_tokens = kKvAppendManyRows / 10 + 1, .norm = true, .rope = true});
  ASSERT_EQ(PlanKvAppend(batch.Params()).rows_per_group, 2);
  const AppendOutputs whole = RunOnDevice(batch);
  const int64_t q_row = int64_t{batch.shape.num_q_heads} * batch.shape.head_dim;
  for (const int64_t token : {int64_t{0}, int64_t{11}, batch.shape.num_tokens - 1}) {
    KvAppendCase alone({.num_tokens = 1, .norm = true, .rope = true});
    for (int64_t i = 0; i < alone.row_elements; ++i) alone.qkv.Set(i, batch.Input(token, i));
    alone.q_weight = batch.q_weight;
    alone.k_weight = batch.k_weight;
    alone.positions[0] = batch.positions[token];
    const AppendOutputs one = RunOnDevice(alone);
    const auto row_of = [](const KvAppendCase& c, const HostTensor& pool, int64_t slot) {
      std::vector<double> row;
      for (int32_t i = 0; i < c.shape.head_dim; ++i) {
        row.push_back(pool[c.layout.KeyOffset(slot / 16, 1, static_cast<int32_t>(slot % 16)) + i]);
      }
      return row;
    };
    EXPECT_EQ(row_of(alone, one.pool, alone.slots[0]),
              row_of(batch, whole.pool, batch.slots[token]));
    for (int64_t i = 0; i < q_row; ++i) {
      ASSERT_EQ(one.q_out[i], whole.q_out[token * q_row + i]) << "token " << token;
    }
  }
}

// A grid dimension over 65,535 is a silent no-op where rows are mapped to y or z.
TEST_F(KvAppendCudaTest, SeventyThousandTokensAreAllWritten) {
  KvAppendCase c({.num_tokens = 70'000,
                  .num_q_heads = 0,
                  .num_kv_heads = 1,
                  .head_dim = 64,
                  .page_size = 256});
  const AppendOutputs actual = RunOnDevice(c);
  KvAppendReference(c.Params());
  EXPECT_TRUE(actual.pool.bytes() == c.pool.bytes());
}

// int32 page offsets: slots whose rows lie beyond 2 and 4 GiB and at the end of the pool.
TEST_F(KvAppendCudaTest, FarEndOfAPoolOverFourGibibytesIsReached) {
  KvAppendCase c({.num_tokens = 4, .num_q_heads = 0, .num_kv_heads = 8, .page_size = 256});
  const int64_t page_bytes = c.layout.PageStride() * SizeOf(c.shape.dtype);
  c.layout.num_pages = (int64_t{5} << 30) / page_bytes;
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const int64_t pool_bytes = c.layout.num_pages * page_bytes;
  if (static_cast<int64_t>(free) < pool_bytes + (int64_t{256} << 20)) {
    GTEST_SKIP() << "a pool of " << pool_bytes << " bytes does not fit into " << free << " free";
  }
  const int64_t last = c.layout.NumSlots() - 1;
  const auto slot_at = [&](int64_t bytes) { return bytes / page_bytes * c.shape.page_size; };
  c.slots = {last, slot_at(int64_t{2} << 30) + 3, slot_at(int64_t{4} << 30) + 5, 0};
  DeviceBuffer pool(pool_bytes);
  pool.Fill(0xff);
  const DeviceBuffer qkv = testing::ToDevice(c.qkv), slots(c.slots);
  KvAppendParams params = c.Params();
  params.k = qkv.data();
  params.v = qkv.as<char>() + 8 * 128 * 2;
  params.kv = pool.data();
  params.slots = slots.as<int64_t>();
  Launch(params, {});
  HostTensor row(c.shape.dtype, c.shape.head_dim);
  for (int64_t t = 0; t < 4; ++t) {
    for (int32_t h = 0; h < 8; ++h) {
      for (const int32_t value : {0, 1}) {
        // The byte address, computed from the definition of the layout.
        const int64_t offset = (((c.slots[t] / 256 * 2 + value) * 8 + h) * 256 + c.slots[t] % 256) *
                               c.shape.head_dim * 2;
        pool.CopyTo(row.data(), c.shape.head_dim * 2, offset);
        for (int32_t i = 0; i < c.shape.head_dim; ++i) {
          ASSERT_EQ(row[i], c.Input(t, (value * 8 + h) * 128 + i))
              << "token " << t << " head " << h;
        }
      }
    }
  }
}

TEST_F(KvAppendCudaTest, SingleTokenWithDegenerateStridesMatchesReference) {
  KvAppendCase c({.num_tokens = 1, .norm = true, .rope = true});
  const AppendOutputs actual = RunOnDevice(c);
  c.row_elements = 0;  // with one token the strides have no meaning
  const AppendOutputs degenerate = RunOnDevice(c);
  EXPECT_EQ(actual.pool.bytes(), degenerate.pool.bytes());
  EXPECT_EQ(actual.q_out.bytes(), degenerate.q_out.bytes());
}

TEST_F(KvAppendCudaTest, F32IsRefused) {
  KvAppendCase c({.dtype = DType::kF32});
  EXPECT_THAT([&] { Launch(c.Params(), {}); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  ::testing::HasSubstr("supported on CUDA are bf16, f16")));
}

}  // namespace
}  // namespace tokline
