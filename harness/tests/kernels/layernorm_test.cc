// LayerNorm without a device: validation, cost, plan, and the reference.
#include "reference/layernorm.h"

#include <gmock/gmock.h>

#include <functional>

#include "harness/tests/kernels/layernorm_case.h"
#include "kernels/common/error.h"
#include "kernels/layernorm/layernorm_policy.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::LayerNormCase;

std::string RefusalOf(const std::function<void(LayerNormParams&)>& change) {
  const LayerNormCase c({.tokens = 2, .hidden = 64});
  HostTensor out = c.NewOut();
  LayerNormParams params = c.Params(out.data());
  Validate(params);
  change(params);
  try {
    Validate(params);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(LayerNormTest, ValidateStatesWhatIsWrong) {
  using P = LayerNormParams;
  EXPECT_THAT(RefusalOf([](P& p) { p.num_tokens = -3; }), HasSubstr("num_tokens is -3"));
  EXPECT_THAT(RefusalOf([](P& p) { p.hidden_size = 0; }), HasSubstr("hidden_size is 0"));
  EXPECT_THAT(RefusalOf([](P& p) { p.eps = -1; }), HasSubstr("eps is -1"));
  EXPECT_THAT(RefusalOf([](P& p) { p.bias = nullptr; }), HasSubstr("must not be null"));
  EXPECT_THAT(RefusalOf([](P& p) { p.weight = nullptr; }), HasSubstr("must not be null"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_stride = 63; }), HasSubstr("x_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_stride = 0; }), HasSubstr("out_stride is 0"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.out = const_cast<void*>(p.x);
                p.out_stride = 72;
              }),
              HasSubstr("x and out are one tensor, but have strides 64 and 72"));
}

TEST(LayerNormTest, LaunchTakesNoF32) {
  EXPECT_THROW(ValidateLaunch(LayerNormParams{.dtype = DType::kF32}), InvalidArgument);
  EXPECT_NO_THROW(ValidateLaunch(LayerNormParams{.dtype = DType::kF16}));
}

TEST(LayerNormTest, CostMatchesBruteForceCount) {
  double reads = 0, writes = 0, flops = 0;
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < 5; ++i) {
      reads += t == 0 ? 2 + 4 : 2;  // x; weight and bias once
      writes += 2;
      flops += 7;
    }
  }
  const Cost cost = CostOf(LayerNormParams{.num_tokens = 3, .hidden_size = 5});
  EXPECT_EQ(cost.read_bytes, reads);
  EXPECT_EQ(cost.write_bytes, writes);
  EXPECT_EQ(cost.flops, flops);
  EXPECT_EQ(CostOf(LayerNormParams{.hidden_size = 8}).Bytes(), 0);
}

TEST(LayerNormTest, PlanTakesVectorsOnlyWhereEveryRowIsAligned) {
  const LayerNormCase c({.tokens = 2, .hidden = 64, .pad = 8});
  HostTensor out = c.NewOut();
  const LayerNormParams aligned = c.Params(out.data());
  EXPECT_EQ(PlanLayerNorm(aligned).width, 8);
  const auto width = [&](const std::function<void(LayerNormParams&)>& change) {
    LayerNormParams params = aligned;
    change(params);
    return PlanLayerNorm(params).width;
  };
  EXPECT_EQ(width([](auto& p) { p.out_stride = 68; }), 1);
  EXPECT_EQ(width([](auto& p) { p.x = static_cast<const char*>(p.x) + 2; }), 1);
  EXPECT_EQ(width([](auto& p) { p.bias = static_cast<const char*>(p.bias) + 2; }), 1);
  EXPECT_EQ(width([](auto& p) { p.hidden_size = 63; }), 1);
}

TEST(LayerNormTest, PlanCoversEveryRow) {
  for (const int64_t tokens : {1, 3, 4, 5, 512, 1001, 3'000'000}) {
    for (const int64_t hidden : {1, 64, 256, 768, 1032, 4096}) {
      const LayerNormPlan plan = PlanLayerNorm(
          {.num_tokens = tokens, .hidden_size = hidden, .x_stride = hidden, .out_stride = hidden});
      EXPECT_GE(plan.blocks * plan.rows_per_block, tokens);
      EXPECT_LT((plan.blocks - 1) * plan.rows_per_block, tokens);
      // More than a warp has a row's statistics to sum over a block: only one row fits it.
      EXPECT_TRUE(plan.threads_per_row == 32 || plan.rows_per_block == 1);
    }
  }
}

TEST(LayerNormReferenceTest, KnownRow) {
  const std::vector<float> x = {1, 2, 3, 6}, weight = {1, 1, 2, -1}, bias = {0, 10, 0, 1};
  std::vector<float> out(4);
  LayerNormReference({.dtype = DType::kF32,
                      .num_tokens = 1,
                      .hidden_size = 4,
                      .x = x.data(),
                      .weight = weight.data(),
                      .bias = bias.data(),
                      .out = out.data()});
  const double scale = 1 / std::sqrt(3.5);  // the deviations are -2, -1, 0, 3
  EXPECT_FLOAT_EQ(out[0], -2 * scale);
  EXPECT_FLOAT_EQ(out[1], 10 - scale);
  EXPECT_EQ(out[2], 0);
  EXPECT_FLOAT_EQ(out[3], 1 - 3 * scale);
}

TEST(LayerNormReferenceTest, EveryElementIsInItsBound) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {1, 7, 64, 1000}) {
      const LayerNormCase c({.dtype = dtype, .tokens = 3, .hidden = hidden, .pad = 3});
      HostTensor out = c.NewOut();
      LayerNormReference(c.Params(out.data()));
      EXPECT_TRUE(c.Check(out)) << Name(dtype) << ", hidden " << hidden;
    }
  }
}

TEST(LayerNormReferenceTest, OutMayBeX) {
  const LayerNormCase c({.tokens = 3, .hidden = 40});
  HostTensor apart = c.NewOut(), x = c.x;
  LayerNormReference(c.Params(apart.data()));
  LayerNormParams params = c.Params(x.data());
  params.x = x.data();
  LayerNormReference(params);
  EXPECT_TRUE(x == apart);
}

// What a second rounding, or a variance around zero, gives must not pass.
TEST(LayerNormReferenceTest, BoundCatchesAWrongRoundingAndAWrongVariance) {
  const LayerNormCase c({.tokens = 1, .hidden = 256, .offset = 0.5});
  double sum = 0, deviations = 0, squares = 0;
  for (int64_t i = 0; i < 256; ++i) sum += c.x[i];
  const double mean = sum / 256;
  for (int64_t i = 0; i < 256; ++i) {
    deviations += (c.x[i] - mean) * (c.x[i] - mean);
    squares += c.x[i] * c.x[i];
  }
  const double right = 1 / std::sqrt(deviations / 256 + LayerNormCase::kEps);
  const double around_zero = 1 / std::sqrt(squares / 256 + LayerNormCase::kEps);
  HostTensor twice = c.NewOut(), wrong = c.NewOut(), once = c.NewOut();
  for (int64_t i = 0; i < 256; ++i) {
    const double n = (c.x[i] - mean) * right;
    once.Set(i, n * c.weight[i] + c.bias[i]);
    twice.Set(i, RoundTo(DType::kBf16, n) * c.weight[i] + c.bias[i]);
    wrong.Set(i, (c.x[i] - mean) * around_zero * c.weight[i] + c.bias[i]);
  }
  EXPECT_TRUE(c.Check(once));
  EXPECT_FALSE(c.Check(twice));
  EXPECT_FALSE(c.Check(wrong));
}

TEST(LayerNormReferenceTest, ConstantRowsGiveTheBias) {
  LayerNormCase c({.tokens = 1, .hidden = 64});
  for (int64_t i = 0; i < 64; ++i) c.x.Set(i, 3);
  HostTensor out = c.NewOut();
  LayerNormReference(c.Params(out.data()));
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], c.bias[i]);
}

}  // namespace
}  // namespace tokline
