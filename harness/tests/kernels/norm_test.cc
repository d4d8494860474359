// RMSNorm and LayerNorm without a device: validation, cost, plan, and the reference.
#include "reference/norm.h"
#include "harness/tests/message_of.h"

#include <gmock/gmock.h>

#include <functional>

#include "harness/tests/kernels/norm_case.h"
#include "kernels/common/error.h"
#include "kernels/norm/norm_plan.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::NormCase;

constexpr NormKind kKinds[] = {NormKind::kRms, NormKind::kLayer};

// The message with which Validate rejects a valid problem, RMSNorm with a residual or LayerNorm,
// after `change`.
std::string RefusalOf(NormKind kind, const std::function<void(NormParams&)>& change) {
  const NormCase c({.kind = kind, .tokens = 2, .hidden = 64, .add = kind == NormKind::kRms});
  HostTensor residual = c.NewOut(), out = c.NewOut();
  NormParams params = c.Params(residual.data(), out.data());
  Validate(params);
  change(params);
  return testing::MessageOf([&] { Validate(params); });
}

TEST(NormTest, ValidateStatesWhatIsWrong) {
  using P = NormParams;
  for (const NormKind kind : kKinds) {
    const auto refusal = [&](const std::function<void(P&)>& change) {
      return RefusalOf(kind, change);
    };
    EXPECT_THAT(refusal([](P& p) { p.num_tokens = -3; }), HasSubstr("num_tokens is -3"));
    EXPECT_THAT(refusal([](P& p) { p.hidden_size = 0; }), HasSubstr("hidden_size is 0"));
    EXPECT_THAT(refusal([](P& p) { p.eps = -1; }), HasSubstr("eps is -1"));
    EXPECT_THAT(refusal([](P& p) { p.out = nullptr; }), HasSubstr("must not be null"));
    EXPECT_THAT(refusal([](P& p) { p.weight = nullptr; }), HasSubstr("must not be null"));
    EXPECT_THAT(refusal([](P& p) { p.x_stride = 63; }), HasSubstr("x_stride is 63"));
    EXPECT_THAT(refusal([](P& p) { p.out_stride = 0; }), HasSubstr("out_stride is 0"));
  }
}

TEST(NormTest, ValidateStatesWhatIsWrongWithABias) {
  EXPECT_THAT(RefusalOf(NormKind::kLayer, [](auto& p) { p.bias = nullptr; }),
              HasSubstr("layernorm needs one"));
  EXPECT_THAT(RefusalOf(NormKind::kRms, [](auto& p) { p.bias = p.weight; }),
              HasSubstr("rmsnorm takes none"));
  EXPECT_THAT(RefusalOf(NormKind::kLayer,
                        [](auto& p) {
                          p.out = const_cast<void*>(p.x);
                          p.out_stride = 72;
                        }),
              HasSubstr("x and out are one tensor, but have strides 64 and 72"));
}

TEST(NormTest, ValidateStatesWhatIsWrongWithAResidual) {
  using P = NormParams;
  const auto refusal = [](const std::function<void(P&)>& change) {
    return RefusalOf(NormKind::kRms, change);
  };
  EXPECT_THAT(RefusalOf(NormKind::kLayer, [](P& p) { p.add = p.residual_out = p.out; }),
              HasSubstr("layernorm adds no residual"));
  EXPECT_THAT(refusal([](P& p) { p.residual_out = nullptr; }),
              HasSubstr("add is given without residual_out"));
  EXPECT_THAT(refusal([](P& p) { p.add = nullptr; }),
              HasSubstr("residual_out is given without add"));
  EXPECT_THAT(refusal([](P& p) { p.out = p.residual_out; }), HasSubstr("out must be none of"));
  EXPECT_THAT(refusal([](P& p) { p.add_stride = 63; }), HasSubstr("add_stride is 63"));
  EXPECT_THAT(refusal([](P& p) { p.residual_out_stride = 1; }),
              HasSubstr("residual_out_stride is 1"));
  EXPECT_THAT(refusal([](P& p) {
                p.residual_out = const_cast<void*>(p.x);
                p.residual_out_stride = 72;
              }),
              HasSubstr("x and residual_out are one tensor, but have strides 64 and 72"));
}

TEST(NormTest, CostMatchesBruteForceCount) {
  struct Form {
    NormKind kind;
    bool add;
    int weights, flops;
  };
  for (const Form& form : {Form{NormKind::kRms, false, 1, 4}, Form{NormKind::kRms, true, 1, 5},
                           Form{NormKind::kLayer, false, 2, 7}}) {
    const NormCase c({.kind = form.kind, .tokens = 3, .hidden = 5, .add = form.add});
    HostTensor residual = c.NewOut(), out = c.NewOut();
    double reads = 0, writes = 0, flops = 0;
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < 5; ++i) {
        reads += form.add ? 4 : 2;
        writes += form.add ? 4 : 2;
        flops += form.flops;
        if (t == 0) reads += 2 * form.weights;
      }
    }
    const Cost cost = CostOf(c.Params(residual.data(), out.data()));
    EXPECT_EQ(cost.read_bytes, reads);
    EXPECT_EQ(cost.write_bytes, writes);
    EXPECT_EQ(cost.flops, flops);
    EXPECT_EQ(CostOf(NormParams{.kind = form.kind, .hidden_size = 8}).Bytes(), 0);
  }
}

TEST(NormTest, PlanTakesVectorsOnlyWhereEveryRowIsAligned) {
  for (const NormKind kind : kKinds) {
    const NormCase c({.kind = kind, .tokens = 2, .hidden = 64, .pad = 8});
    HostTensor out = c.NewOut();
    const auto width = [&](const std::function<void(NormParams&)>& change) {
      NormParams params = c.Params(nullptr, out.data());
      change(params);
      return PlanNorm(params).width;
    };
    EXPECT_EQ(width([](auto&) {}), 8);
    EXPECT_EQ(width([](auto& p) { p.out_stride = 68; }), 1);
    EXPECT_EQ(width([](auto& p) { p.x = static_cast<const char*>(p.x) + 2; }), 1);
    EXPECT_EQ(width([](auto& p) { p.bias = static_cast<const char*>(p.weight) + 2; }), 1);
    EXPECT_EQ(width([](auto& p) { p.hidden_size = 63; }), 1);
  }
}

TEST(NormTest, PlanCoversEveryRow) {
  alignas(16) static const char residual[16] = {};
  const auto expect_covered = [](int64_t tokens, int64_t hidden, const void* add) {
    const NormPlan plan = PlanNorm({.num_tokens = tokens,
                                    .hidden_size = hidden,
                                    .x_stride = hidden,
                                    .add = add,
                                    .add_stride = hidden,
                                    .residual_out_stride = hidden,
                                    .out_stride = hidden});
    EXPECT_GE(plan.blocks * plan.rows_per_block, tokens);
    EXPECT_LT((plan.blocks - 1) * plan.rows_per_block, tokens);
    // With more than a warp per row the statistic is summed over the block, which works for one
    // row only.
    EXPECT_TRUE(plan.threads_per_row == 32 || plan.rows_per_block == 1);
    if (plan.width == 8 && hidden <= 16384) {
      EXPECT_GE(plan.threads_per_row * plan.held * 8, hidden) << tokens << " rows";
    } else {
      EXPECT_EQ(plan.held, 0) << hidden;
    }
  };
  for (const int64_t tokens : {1, 3, 4, 5, 511, 512, 1001, 3'000'000}) {
    for (const int64_t hidden :
         {1, 64, 256, 768, 1024, 1032, 2048, 2056, 4096, 4104, 16384, 16392}) {
      expect_covered(tokens, hidden, nullptr);
      expect_covered(tokens, hidden, residual);
    }
  }
}

TEST(RmsNormReferenceTest, EveryElementIsInItsInterval) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t hidden : {1, 7, 64, 1000}) {
      for (const bool add : {false, true}) {
        const NormCase c({.dtype = dtype, .tokens = 3, .hidden = hidden, .add = add, .pad = 3});
        HostTensor residual = c.NewOut(), out = c.NewOut();
        NormReference(c.Params(residual.data(), out.data()));
        // In f32 the interval is wider than one ulp, so its ends are not all the values in it.
        if (dtype == DType::kF32) {
          for (int64_t i = 0; i < hidden && !add; ++i) {
            double squares = 0;
            for (int64_t k = 0; k < hidden; ++k) squares += c.x[k] * c.x[k];
            const double expected =
                c.x[i] / std::sqrt(squares / hidden + NormCase::kEps) * c.weight[i];
            EXPECT_NEAR(out[i], expected, 2 * Epsilon(dtype) * std::abs(expected));
          }
        } else {
          EXPECT_TRUE(c.Check(residual, out)) << Name(dtype) << ", hidden " << hidden;
        }
      }
    }
  }
}

TEST(NormReferenceTest, OutMayBeX) {
  for (const NormKind kind : kKinds) {
    const NormCase c({.kind = kind, .tokens = 3, .hidden = 40});
    HostTensor apart = c.NewOut(), x = c.x;
    NormReference(c.Params(nullptr, apart.data()));
    NormParams params = c.Params(nullptr, x.data());
    params.x = x.data();
    NormReference(params);
    EXPECT_TRUE(x == apart) << Name(kind);
  }
}

TEST(RmsNormReferenceTest, ResidualOutMayBeAdd) {
  const NormCase added({.tokens = 3, .hidden = 40, .add = true});
  HostTensor out = added.NewOut(), add = added.add;
  NormParams params = added.Params(add.data(), out.data());
  params.add = add.data();
  NormReference(params);
  EXPECT_TRUE(added.Check(add, out));
}

// The interval must distinguish a kernel that rounds after the norm weight from one that rounds
// before.
TEST(RmsNormReferenceTest, IntervalCatchesANormThatIsNotRoundedBeforeItsWeight) {
  const NormCase c({.tokens = 1, .hidden = 256});
  HostTensor out = c.NewOut();
  double squares = 0;
  for (int64_t i = 0; i < 256; ++i) squares += c.x[i] * c.x[i];
  const double scale = 1 / std::sqrt(squares / 256 + NormCase::kEps);
  for (int64_t i = 0; i < 256; ++i) out.Set(i, c.x[i] * scale * c.weight[i]);
  EXPECT_FALSE(c.Check(c.NewOut(), out));
}

TEST(RmsNormReferenceTest, ZeroRowsStayZero) {
  NormCase c({.tokens = 1, .hidden = 64});
  for (int64_t i = 0; i < 64; ++i) c.x.Set(i, 0);
  HostTensor out = c.NewOut();
  NormReference(c.Params(nullptr, out.data()));
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], 0);
}

TEST(LayerNormReferenceTest, KnownRow) {
  const std::vector<float> x = {1, 2, 3, 6}, weight = {1, 1, 2, -1}, bias = {0, 10, 0, 1};
  std::vector<float> out(4);
  NormReference({.kind = NormKind::kLayer,
                 .dtype = DType::kF32,
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
      const NormCase c(
          {.kind = NormKind::kLayer, .dtype = dtype, .tokens = 3, .hidden = hidden, .pad = 3});
      HostTensor out = c.NewOut();
      NormReference(c.Params(nullptr, out.data()));
      EXPECT_TRUE(c.Check(c.NewOut(), out)) << Name(dtype) << ", hidden " << hidden;
    }
  }
}

// The result of a second rounding, or of a variance around zero, must not pass.
TEST(LayerNormReferenceTest, BoundCatchesAWrongRoundingAndAWrongVariance) {
  const NormCase c({.kind = NormKind::kLayer, .tokens = 1, .hidden = 256, .offset = 0.5});
  double sum = 0, deviations = 0, squares = 0;
  for (int64_t i = 0; i < 256; ++i) sum += c.x[i];
  const double mean = sum / 256;
  for (int64_t i = 0; i < 256; ++i) {
    deviations += (c.x[i] - mean) * (c.x[i] - mean);
    squares += c.x[i] * c.x[i];
  }
  const double right = 1 / std::sqrt(deviations / 256 + NormCase::kEps);
  const double around_zero = 1 / std::sqrt(squares / 256 + NormCase::kEps);
  HostTensor twice = c.NewOut(), wrong = c.NewOut(), once = c.NewOut();
  for (int64_t i = 0; i < 256; ++i) {
    const double n = (c.x[i] - mean) * right;
    once.Set(i, n * c.weight[i] + c.bias[i]);
    twice.Set(i, RoundTo(DType::kBf16, n) * c.weight[i] + c.bias[i]);
    wrong.Set(i, (c.x[i] - mean) * around_zero * c.weight[i] + c.bias[i]);
  }
  EXPECT_TRUE(c.Check(c.NewOut(), once));
  EXPECT_FALSE(c.Check(c.NewOut(), twice));
  EXPECT_FALSE(c.Check(c.NewOut(), wrong));
}

// Around a large mean each bound has room for the terms that cancel, but not all for their sum.
TEST(LayerNormReferenceTest, MeanThatIsOffWithinEveryBoundIsRejected) {
  const NormCase c(
      {.kind = NormKind::kLayer, .dtype = DType::kF16, .tokens = 1, .hidden = 256, .offset = 1000});
  double sum = 0, deviations = 0;
  for (int64_t i = 0; i < 256; ++i) sum += c.x[i];
  for (int64_t i = 0; i < 256; ++i) deviations += std::pow(c.x[i] - sum / 256, 2);
  const double scale = 1 / std::sqrt(deviations / 256 + NormCase::kEps);
  const auto with_error = [&](double units) {
    HostTensor out = c.NewOut();
    for (int64_t i = 0; i < 256; ++i) {
      const double mean = sum / 256 * (1 + units * 0x1p-24);
      out.Set(i, (c.x[i] - mean) * scale * c.weight[i] + c.bias[i]);
    }
    return c.Check(c.NewOut(), out);
  };
  EXPECT_TRUE(with_error(0));
  EXPECT_TRUE(with_error(2));
  EXPECT_THAT(with_error(24).message(), HasSubstr("root mean square"));
}

TEST(LayerNormReferenceTest, ConstantRowsGiveTheBias) {
  NormCase c({.kind = NormKind::kLayer, .tokens = 1, .hidden = 64});
  for (int64_t i = 0; i < 64; ++i) c.x.Set(i, 3);
  HostTensor out = c.NewOut();
  NormReference(c.Params(nullptr, out.data()));
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], c.bias[i]);
}

}  // namespace
}  // namespace tokline
