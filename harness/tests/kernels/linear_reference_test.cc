// The reference of linear, and what its bounds reject: sums as a tensor core makes them pass, wrong
// ones do not.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "harness/tests/kernels/linear_case.h"
#include "reference/linear.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::LinearCase;
using testing::LinearSetup;

TEST(LinearReferenceTest, EveryFormIsWithinItsBound) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const LinearSetup& form :
         {LinearSetup{}, LinearSetup{.norm = true, .bias = true}, LinearSetup{.gated = true},
          LinearSetup{.norm = true, .gated = true, .bias = true}, LinearSetup{.residual = true},
          LinearSetup{.norm = true, .out_f32 = true}}) {
      LinearSetup setup = form;
      setup.dtype = dtype;
      setup.tokens = 5;
      setup.in = 72;
      setup.out = 136;
      setup.pad = 8;
      const LinearCase c(setup);
      HostTensor out = c.NewOut();
      LinearReference(c.Params(out.data()));
      EXPECT_TRUE(c.Check(out)) << Name(dtype);
    }
  }
}

// Sums as a tensor core of Hopper makes them; see LinearCase::Project.
struct TensorCore {
  int sum_bits = 24;
  int shares = 1;          // of K, each summed by itself
  int skipped_group = -1;  // a seeded bug

  static double CutOff(double value, double unit) { return std::trunc(value / unit) * unit; }

  double Add(double sum, std::span<const double> products) const {
    double largest = std::abs(sum), total = 0;
    for (const double p : products) largest = std::max(largest, std::abs(p));
    if (largest == 0) return 0;
    const double unit = std::exp2(std::ilogb(largest) - 25);
    for (const double p : products) total += CutOff(p, unit);
    total += CutOff(sum, unit);
    return total == 0 ? 0 : CutOff(total, std::exp2(std::ilogb(total) + 1 - sum_bits));
  }

  float Project(const LinearCase& c, const testing::Normalised& n, int64_t row) const {
    const int64_t in = c.setup.in, groups = in / LinearCase::kGroup;
    std::vector<double> products(in);
    for (int64_t k = 0; k < in; ++k) products[k] = n.value[k] * c.weight[row * in + k];
    float result = 0;
    for (int share = 0; share < shares; ++share) {
      double sum = 0;
      for (int64_t g = groups * share / shares; g < groups * (share + 1) / shares; ++g) {
        if (g == skipped_group) continue;
        sum = Add(sum, std::span(products).subspan(g * LinearCase::kGroup, LinearCase::kGroup));
      }
      result += static_cast<float>(sum);
    }
    return result;
  }

  HostTensor Run(const LinearCase& c) const {
    HostTensor out = c.NewOut();
    for (int64_t t = 0; t < c.setup.tokens; ++t) {
      const testing::Normalised n = c.ActivationsOf(t);
      for (int64_t i = 0; i < c.setup.out; ++i) out.Set(t * c.OutStride() + i, Project(c, n, i));
    }
    return out;
  }
};

constexpr LinearSetup kFp32Out{
    .tokens = 100, .in = 768, .out = 512, .norm = true, .out_f32 = true, .pad = 16};

// What an H200 differed by: its cuBLASLt in one share, its kWgmma in two.
TEST(TensorCoreTest, SimulatedSumsDifferAsThoseOfAnH200) {
  struct Measured {
    DType dtype;
    int64_t index;
    int shares;
    double difference;
  };
  for (const Measured& m :
       {Measured{DType::kBf16, 12461, 1, 3.0414e-5}, Measured{DType::kBf16, 14325, 2, 1.0798e-5},
        Measured{DType::kF16, 12364, 1, 2.9922e-5}, Measured{DType::kF16, 12364, 2, 1.4664e-5}}) {
    LinearSetup setup = kFp32Out;
    setup.dtype = m.dtype;
    const LinearCase c(setup);
    const testing::Normalised n = c.ActivationsOf(m.index / setup.out);
    const int64_t row = m.index % setup.out;
    const LinearCase::Approximate exact = c.Project(n, row);
    const float actual = TensorCore{.shares = m.shares}.Project(c, n, row);
    EXPECT_NEAR(std::abs(actual - exact.value), m.difference, 2e-9) << m.index;
    EXPECT_LT(m.difference, exact.bound) << m.index;
  }
}

TEST(TensorCoreTest, SimulatedSumsAreWithinTheirBound) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t in : {32, 256, 768, 2048}) {
      LinearSetup setup = kFp32Out;
      setup.dtype = dtype;
      setup.tokens = 20;
      setup.in = in;
      const LinearCase c(setup);
      for (const int shares : {1, 2, 8}) {
        EXPECT_TRUE(c.Check(TensorCore{.shares = shares}.Run(c)))
            << Name(dtype) << ", in " << in << ", shares " << shares;
      }
    }
  }
}

TEST(TensorCoreTest, WrongSumsAreNotWithinTheirBound) {
  LinearSetup setup = kFp32Out;
  setup.tokens = 5;
  const LinearCase c(setup);
  EXPECT_TRUE(c.Check(TensorCore{}.Run(c)));
  EXPECT_FALSE(c.Check(TensorCore{.skipped_group = 47}.Run(c)));
  EXPECT_FALSE(c.Check(TensorCore{.sum_bits = 22}.Run(c)));
  LinearCase other = c;  // one of 393,216 weights is off by 1 %
  other.weight.Set(300 * setup.in + 500, 1.01 * c.weight[300 * setup.in + 500]);
  EXPECT_FALSE(c.Check(TensorCore{}.Run(other)));
}

// Where a bound has room for more than one rounding, each error of a truncation is within it.
TEST(WithinRmsTest, TruncationWithinEveryBoundIsRejected) {
  const HostTensor exact = testing::RandomTensor(DType::kF32, 1000, 1);
  HostTensor rounded(DType::kBf16, 1000), truncated(DType::kBf16, 1000);
  for (int64_t i = 0; i < 1000; ++i) {
    const double unit = 2 * testing::HalfUlp(DType::kBf16, exact[i]);
    rounded.Set(i, exact[i]);
    truncated.Set(i, std::trunc(exact[i] / unit) * unit);
  }
  const auto variance = [&](int64_t i) {
    return testing::RoundingVariance(DType::kBf16, exact[i]);
  };
  EXPECT_TRUE(testing::WithinRms(rounded, exact, 1000, variance, 1));
  const auto two_roundings = [&](int64_t i) {
    return 2 * testing::HalfUlp(DType::kBf16, exact[i]);
  };
  EXPECT_TRUE(testing::WithinBound(truncated, exact, 1000, two_roundings, 1));
  EXPECT_FALSE(testing::WithinRms(truncated, exact, 1000, variance, 1));
}

// Four roundings make the bound of a gated MLP, but they do not all go in one direction.
TEST(LinearReferenceTest, ErrorsInOneDirectionAreRejectedByTheRootMeanSquare) {
  const LinearCase c({.tokens = 16, .in = 72, .out = 136, .gated = true});
  const LinearCase::Expectation expected = c.Expect();
  HostTensor out = c.NewOut();
  for (size_t i = 0; i < expected.value.size(); ++i) {
    out.Set(static_cast<int64_t>(i), expected.value[i] + 0.6 * expected.bound[i]);
  }
  EXPECT_THAT(c.Check(out).message(), HasSubstr("root mean square"));
}

TEST(LinearReferenceTest, DroppedTailOfKInOnePercentOfTheFeaturesIsRejected) {
  const LinearCase c({.tokens = 5, .in = 1024, .out = 200, .norm = true});
  LinearCase shorter = c;
  for (const int64_t row : {17, 151}) {
    for (int64_t k = 1016; k < 1024; ++k) shorter.weight.Set(row * 1024 + k, 0);
  }
  HostTensor out = c.NewOut();
  LinearReference(shorter.Params(out.data()));
  EXPECT_FALSE(c.Check(out));
}

TEST(LinearReferenceTest, OddOutFeaturesAndManyRowBlocks) {
  const LinearCase c({.tokens = 3, .in = 8, .out = 333, .integers = true});
  HostTensor out = c.NewOut();
  LinearReference(c.Params(out.data()));
  EXPECT_TRUE(c.Check(out));
}

TEST(LinearReferenceTest, ResidualMayBeOut) {
  const LinearCase c({.tokens = 4, .in = 64, .out = 48, .residual = true, .pad = 8});
  HostTensor apart = c.NewOut(), in_place = c.residual;
  LinearReference(c.Params(apart.data()));
  LinearParams params = c.Params(in_place.data());
  params.residual = in_place.data();
  LinearReference(params);
  EXPECT_TRUE(in_place == apart);
}

// The fused predecessor had this error: it applied the norm weight to the unrounded activation.
// Unless the bound distinguishes the two, no test of the kernels would.
TEST(LinearReferenceTest, BoundCatchesANormThatIsNotRoundedBeforeItsWeight) {
  LinearCase c({.tokens = 4, .in = 64, .out = 64, .norm = true});
  for (int64_t k = 0; k < 64; ++k) {
    c.norm_weight.Set(k, 96.5);
    for (int64_t row = 0; row < 64; ++row) c.weight.Set(row * 64 + k, row == k ? 1 : 0);
  }
  HostTensor out = c.NewOut();
  LinearReference(c.Params(out.data()));
  EXPECT_TRUE(c.Check(out));
  for (int64_t t = 0; t < 4; ++t) {
    double squares = 0;
    for (int64_t k = 0; k < 64; ++k) squares += std::pow(c.x[t * 64 + k], 2);
    for (int64_t k = 0; k < 64; ++k) {
      out.Set(t * 64 + k, c.x[t * 64 + k] / std::sqrt(squares / 64 + LinearCase::kEps) * 96.5);
    }
  }
  EXPECT_FALSE(c.Check(out));
}

TEST(LinearReferenceTest, NoTokensWriteNothing) {
  LinearReference({.num_tokens = 0, .in_features = 8, .out_features = 8});
}

}  // namespace
}  // namespace tokline
