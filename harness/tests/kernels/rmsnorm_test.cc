// RMSNorm without a device: validation, cost, plan, and the reference.
#include "reference/rmsnorm.h"

#include <gmock/gmock.h>

#include <functional>

#include "harness/tests/kernels/rmsnorm_case.h"
#include "kernels/common/error.h"
#include "kernels/rmsnorm/rmsnorm_policy.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::RmsNormCase;
using testing::RmsNormSetup;

std::string RefusalOf(const std::function<void(RmsNormParams&)>& change) {
  const RmsNormCase c({.tokens = 2, .hidden = 64, .add = true});
  HostTensor residual = c.NewOut(), out = c.NewOut();
  RmsNormParams params = c.Params(residual.data(), out.data());
  Validate(params);
  change(params);
  try {
    Validate(params);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(RmsNormTest, ValidateStatesWhatIsWrong) {
  using P = RmsNormParams;
  EXPECT_THAT(RefusalOf([](P& p) { p.num_tokens = -3; }), HasSubstr("num_tokens is -3"));
  EXPECT_THAT(RefusalOf([](P& p) { p.hidden_size = 0; }), HasSubstr("hidden_size is 0"));
  EXPECT_THAT(RefusalOf([](P& p) { p.eps = -1; }), HasSubstr("eps is -1"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out = nullptr; }), HasSubstr("must not be null"));
  EXPECT_THAT(RefusalOf([](P& p) { p.residual_out = nullptr; }),
              HasSubstr("add is given without residual_out"));
  EXPECT_THAT(RefusalOf([](P& p) { p.add = nullptr; }),
              HasSubstr("residual_out is given without add"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out = p.residual_out; }), HasSubstr("out must be none of"));
  EXPECT_THAT(RefusalOf([](P& p) { p.x_stride = 63; }), HasSubstr("x_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) { p.add_stride = 63; }), HasSubstr("add_stride is 63"));
  EXPECT_THAT(RefusalOf([](P& p) { p.out_stride = 0; }), HasSubstr("out_stride is 0"));
  EXPECT_THAT(RefusalOf([](P& p) { p.residual_out_stride = 1; }),
              HasSubstr("residual_out_stride is 1"));
  EXPECT_THAT(RefusalOf([](P& p) {
                p.residual_out = const_cast<void*>(p.x);
                p.residual_out_stride = 72;
              }),
              HasSubstr("x and residual_out are one tensor, but have strides 64 and 72"));
}

TEST(RmsNormTest, LaunchTakesNoF32) {
  EXPECT_THROW(ValidateLaunch(RmsNormParams{.dtype = DType::kF32}), InvalidArgument);
  EXPECT_NO_THROW(ValidateLaunch(RmsNormParams{.dtype = DType::kF16}));
}

TEST(RmsNormTest, CostMatchesBruteForceCount) {
  for (const bool add : {false, true}) {
    const RmsNormCase c({.tokens = 3, .hidden = 5, .add = add});
    HostTensor residual = c.NewOut(), out = c.NewOut();
    double reads = 0, writes = 0, flops = 0;
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < 5; ++i) {
        reads += add ? 4 : 2;
        writes += add ? 4 : 2;
        flops += add ? 5 : 4;
        if (t == 0) reads += 2;  // weight
      }
    }
    const Cost cost = CostOf(c.Params(residual.data(), out.data()));
    EXPECT_EQ(cost.read_bytes, reads);
    EXPECT_EQ(cost.write_bytes, writes);
    EXPECT_EQ(cost.flops, flops);
  }
  EXPECT_EQ(CostOf(RmsNormParams{.hidden_size = 8}).Bytes(), 0);
}

TEST(RmsNormTest, PlanTakesVectorsOnlyWhereEveryRowIsAligned) {
  const RmsNormCase c({.tokens = 2, .hidden = 64, .pad = 8});
  HostTensor out = c.NewOut();
  const RmsNormParams aligned = c.Params(nullptr, out.data());
  EXPECT_EQ(PlanRmsNorm(aligned).width, 8);
  RmsNormParams params = aligned;
  params.out_stride = 68;
  EXPECT_EQ(PlanRmsNorm(params).width, 1);
  params = aligned;
  params.x = static_cast<const char*>(params.x) + 2;
  EXPECT_EQ(PlanRmsNorm(params).width, 1);
  params = aligned;
  params.hidden_size = 63;
  EXPECT_EQ(PlanRmsNorm(params).width, 1);
}

TEST(RmsNormTest, PlanCoversEveryRow) {
  for (const int64_t tokens : {1, 3, 4, 5, 512, 1001, 3'000'000}) {
    for (const int64_t hidden : {1, 64, 256, 1024, 1032, 4096}) {
      const RmsNormPlan plan = PlanRmsNorm(
          {.num_tokens = tokens, .hidden_size = hidden, .x_stride = hidden, .out_stride = hidden});
      EXPECT_GE(plan.blocks * plan.rows_per_block, tokens);
      EXPECT_LT((plan.blocks - 1) * plan.rows_per_block, tokens);
      // More than a warp has a row's statistic to sum over a block: only one row fits it.
      EXPECT_TRUE(plan.threads_per_row == 32 || plan.rows_per_block == 1);
    }
  }
}

TEST(RmsNormReferenceTest, EveryElementIsInItsInterval) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {1, 7, 64, 1000}) {
      for (const bool add : {false, true}) {
        const RmsNormCase c({.dtype = dtype, .tokens = 3, .hidden = hidden, .add = add, .pad = 3});
        HostTensor residual = c.NewOut(), out = c.NewOut();
        RmsNormReference(c.Params(residual.data(), out.data()));
        // In f32 the interval is wider than a unit in the last place: its ends are not all of it.
        if (dtype == DType::kF32) {
          for (int64_t i = 0; i < hidden && !add; ++i) {
            double squares = 0;
            for (int64_t k = 0; k < hidden; ++k) squares += c.x[k] * c.x[k];
            const double expected =
                c.x[i] / std::sqrt(squares / hidden + RmsNormCase::kEps) * c.weight[i];
            EXPECT_NEAR(out[i], expected, 2 * Epsilon(dtype) * std::abs(expected));
          }
        } else {
          EXPECT_TRUE(c.Check(residual, out)) << Name(dtype) << ", hidden " << hidden;
        }
      }
    }
  }
}

TEST(RmsNormReferenceTest, OutMayBeXAndResidualOutMayBeAdd) {
  const RmsNormCase plain({.tokens = 3, .hidden = 40});
  HostTensor apart = plain.NewOut(), x = plain.x;
  RmsNormReference(plain.Params(nullptr, apart.data()));
  RmsNormParams params = plain.Params(nullptr, x.data());
  params.x = x.data();
  RmsNormReference(params);
  EXPECT_TRUE(x == apart);

  const RmsNormCase added({.tokens = 3, .hidden = 40, .add = true});
  HostTensor out = added.NewOut(), add = added.add;
  params = added.Params(add.data(), out.data());
  params.add = add.data();
  RmsNormReference(params);
  EXPECT_TRUE(added.Check(add, out));
}

// The interval must tell a kernel that rounds after the norm weight from one that rounds before.
TEST(RmsNormReferenceTest, IntervalCatchesANormThatIsNotRoundedBeforeItsWeight) {
  const RmsNormCase c({.tokens = 1, .hidden = 256});
  HostTensor out = c.NewOut();
  double squares = 0;
  for (int64_t i = 0; i < 256; ++i) squares += c.x[i] * c.x[i];
  const double scale = 1 / std::sqrt(squares / 256 + RmsNormCase::kEps);
  for (int64_t i = 0; i < 256; ++i) out.Set(i, c.x[i] * scale * c.weight[i]);
  EXPECT_FALSE(c.Check(c.NewOut(), out));
}

TEST(RmsNormReferenceTest, ZeroRowsStayZero) {
  RmsNormCase c({.tokens = 1, .hidden = 64});
  for (int64_t i = 0; i < 64; ++i) c.x.Set(i, 0);
  HostTensor out = c.NewOut();
  RmsNormReference(c.Params(nullptr, out.data()));
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], 0);
}

}  // namespace
}  // namespace tokline
