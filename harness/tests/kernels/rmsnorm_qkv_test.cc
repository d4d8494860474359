// RMSNorm + QKV without a device: validation, cost, composition, and the reference.
#include "reference/rmsnorm_qkv.h"
#include "harness/tests/message_of.h"

#include <gmock/gmock.h>

#include <functional>

#include "harness/tests/kernels/rmsnorm_qkv_case.h"
#include "kernels/common/error.h"
#include "reference/kv_append.h"
#include "reference/linear.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::RmsNormQkvCase;
using testing::RmsNormQkvSetup;

std::string RefusalOf(const std::function<void(RmsNormQkvParams&)>& change) {
  RmsNormQkvCase c({});
  HostTensor qkv = c.projection.NewOut();
  RmsNormQkvParams params = c.Params(qkv.data());
  Validate(params);
  change(params);
  return testing::MessageOf([&] { Validate(params); });
}

TEST(RmsNormQkvTest, ValidateStatesWhatIsWrong) {
  using P = RmsNormQkvParams;
  EXPECT_THAT(RefusalOf([](P& p) { p.append->num_q_heads = 0; }), HasSubstr("0 heads of q"));
  EXPECT_THAT(RefusalOf([](P& p) { p.append->layout.head_dim = 96; }), HasSubstr("96 wide"));
  EXPECT_THAT(RefusalOf([](P& p) { p.projection.in_features = 60; }),
              HasSubstr("in_features is 60"));
  EXPECT_THAT(RefusalOf([](P& p) { p.projection.out_stride = 9; }), HasSubstr("out_stride is 9"));
  EXPECT_THAT(RefusalOf([](P& p) { p.projection.out_f32 = true; }),
              HasSubstr("append goes with none of gated_silu, out_f32"));
  EXPECT_THAT(
      RefusalOf([](P& p) { p.append->layout.num_kv_heads = 3; }),
      HasSubstr("out_features is 640; append takes 6 heads of q, at least one, and 3 of k"));
  EXPECT_THAT(RefusalOf([](P& p) { p.append->slots = nullptr; }), HasSubstr("slots is null"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.projection.variant = LinearVariant::kSkinny;
                p.projection.num_tokens = 17;
              }),
              HasSubstr("num_tokens is 17"));
  EXPECT_EQ(RefusalOf([](P& p) { p.append.reset(); }), "nothing was thrown");
  EXPECT_EQ(RefusalOf([](P& p) { p.projection.norm_weight = nullptr; }), "nothing was thrown");
}

TEST(RmsNormQkvTest, AppendTakesItsRowsFromTheProjection) {
  RmsNormQkvCase c({});
  HostTensor qkv = c.projection.NewOut();
  const RmsNormQkvParams params = c.Params(qkv.data());
  const KvAppendParams append = AppendOf(params.projection, *params.append);
  const char* const base = static_cast<const char*>(qkv.data());
  EXPECT_EQ(append.q_in, base);
  EXPECT_EQ(append.q_out, base);
  EXPECT_EQ(append.k, base + 6 * 64 * 2);
  EXPECT_EQ(append.v, base + 8 * 64 * 2);
  for (const int64_t stride :
       {append.q_in_stride, append.q_out_stride, append.k_stride, append.v_stride}) {
    EXPECT_EQ(stride, params.projection.out_stride);
  }
  EXPECT_EQ(append.dtype, params.projection.dtype);
  EXPECT_EQ(append.num_tokens, 3);
  EXPECT_EQ(append.slots, c.append.slots.data());
}

TEST(RmsNormQkvTest, CostMatchesBruteForceCount) {
  for (const bool append : {false, true}) {
    RmsNormQkvCase c({.bias = true, .append = append});
    HostTensor qkv = c.projection.NewOut();
    const int tokens = 3, hidden = 64, head_dim = 64, q_heads = 6, kv_heads = 2;
    const int rows = (q_heads + 2 * kv_heads) * head_dim;
    double reads = 2.0 * hidden, writes = 0, flops = 0;  // norm weight
    for (int row = 0; row < rows; ++row) {
      reads += 2 + 2.0 * hidden;  // bias, weight
      flops += tokens * (1 + 2.0 * hidden);
      writes += 2.0 * tokens;  // q to qkv, k and v to qkv or to the cache
    }
    for (int t = 0; t < tokens; ++t) {
      reads += 2.0 * hidden;
      flops += 4.0 * hidden;
      if (!append) continue;
      reads += 8 + 4 + 4.0 * head_dim;                     // slot, position, row of the RoPE table
      flops += (q_heads + kv_heads) * (4 + 3) * head_dim;  // QK-norm, RoPE
    }
    if (append) reads += 2 * 2.0 * head_dim;  // QK-norm weights
    const Cost cost = CostOf(c.Params(qkv.data()));
    EXPECT_EQ(cost.read_bytes, reads) << append;
    EXPECT_EQ(cost.write_bytes, writes) << append;
    EXPECT_EQ(cost.flops, flops) << append;
  }
}

TEST(RmsNormQkvReferenceTest, ProjectionIsWithinItsBound) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    RmsNormQkvCase c({.dtype = dtype, .bias = true, .append = false});
    HostTensor qkv = c.projection.NewOut();
    RmsNormQkvReference(c.Params(qkv.data()));
    EXPECT_TRUE(c.projection.Check(qkv)) << Name(dtype);
  }
}

TEST(RmsNormQkvReferenceTest, PlainAppendCopiesKeysAndValuesToTheirSlots) {
  RmsNormQkvCase c({.transform = false});
  HostTensor qkv = c.projection.NewOut();
  const RmsNormQkvParams params = c.Params(qkv.data());
  RmsNormQkvReference(params);
  EXPECT_TRUE(c.projection.Check(qkv));
  const PagedKvLayout& layout = c.append.layout;
  for (int64_t t = 0; t < 3; ++t) {
    const int64_t page = c.append.slots[t] / layout.page_size;
    const int32_t row = static_cast<int32_t>(c.append.slots[t] % layout.page_size);
    for (int32_t head = 0; head < 2; ++head) {
      for (int32_t d = 0; d < 64; ++d) {
        const int64_t column = t * params.projection.out_stride + (6 + head) * 64 + d;
        EXPECT_EQ(c.append.pool[layout.KeyOffset(page, head, row) + d], qkv[column]);
        EXPECT_EQ(c.append.pool[layout.ValueOffset(page, head, row) + d], qkv[column + 2 * 64]);
      }
    }
  }
}

TEST(RmsNormQkvReferenceTest, IsTheProjectionThenTheAppend) {
  RmsNormQkvCase c({}), parts({});
  HostTensor qkv = c.projection.NewOut(), parts_qkv = c.projection.NewOut();
  RmsNormQkvReference(c.Params(qkv.data()));
  const RmsNormQkvParams params = parts.Params(parts_qkv.data());
  LinearReference(params.projection);
  EXPECT_TRUE(parts.projection.Check(parts_qkv));
  EXPECT_FALSE(parts_qkv == qkv);  // QK-norm and RoPE change q
  KvAppendReference(AppendOf(params.projection, *params.append));
  EXPECT_TRUE(parts_qkv == qkv);
  EXPECT_TRUE(parts.append.pool == c.append.pool);
}

}  // namespace
}  // namespace tokline
