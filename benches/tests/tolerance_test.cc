// The tolerances of the benches: what a correct kernel needs, and what must not be granted to a
// wrong one. Here a "kernel" is the reference with the errors of fp32, or with a fault that keeps
// every element within its bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "benches/append_batch.h"
#include "benches/paged_batch.h"
#include "benches/verify.h"
#include "reference/elements.h"
#include "reference/linear.h"
#include "reference/norm.h"
#include "reference/rmsnorm_qkv.h"

namespace tokline::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DType kType = DType::kBf16;
constexpr int64_t kTokens = 200, kHidden = 1024;
constexpr uint64_t kFillSeed = 5;

using Kernel = std::function<void(const TensorSet&)>;

// The reference is `right`, and its sample is the whole output.
class FaultyCase : public BenchCase {
 public:
  FaultyCase(TensorList tensors, Kernel right) : right_(std::move(right)) {
    tensors_ = std::move(tensors);
  }
  Cost GetCost() const override { return {}; }
  void RunReference(const TensorSet& set) const override { right_(set); }
  void LaunchCuda(const TensorSet&, const LaunchOptions&) const override {}
  SampledCase Sample(uint64_t) const override {
    return SampledCase(std::make_unique<FaultyCase>(tensors_, right_));
  }

 private:
  Kernel right_;
};

Comparison Compare(const TensorList& tensors, const Kernel& right, const Kernel& kernel) {
  const FaultyCase whole(tensors, right);
  TensorStore store(whole.tensors(), 1, MakeHostMemory());
  store.FillRandom(kFillSeed);
  store.Poison();
  kernel(store.Set(0));
  return ExpectedSample(whole, 0, kFillSeed, /*sample_seed=*/2).CompareWith(store);
}

// Rejected, but not because of any single element.
void ExpectRejectedByTheMean(const Comparison& comparison) {
  EXPECT_THAT(comparison.first_failure, HasSubstr("root mean square of its errors"));
  EXPECT_GT(comparison.max_error_over_bound, 1);
}

TEST(ToleranceTest, RoundingAProductsFactorToTheOtherNeighbourCostsUpToThreeUnits) {
  double largest = 0;
  for (int n = 128; n < 256; ++n) {
    for (int w = 128; w < 256; ++w) {
      const double expected = RoundTo(kType, n * w);
      const double unit = Epsilon(kType) * std::exp2(std::floor(std::log2(expected)));
      for (const double other : {n + 1.0, n == 128 ? n - 0.5 : n - 1.0}) {
        largest = std::max(largest, std::abs(RoundTo(kType, other * w) - expected) / unit);
      }
    }
  }
  EXPECT_EQ(largest, kElementwise.ulps);
}

// An RMSNorm whose mean square is about 2^-12 * 4 / 3, so that 1.3e-6 is 0.4 % of it.
TEST(ToleranceTest, RotatingValuesRoundedToTheirOtherNeighboursCostsUpToAnEpsilonOfTheirLength) {
  constexpr int kAngles = 64;  // of a quarter of a turn
  double largest = 0;
  for (int a = 128; a < 256; ++a) {  // units of 1
    for (int b = 128; b < 256; ++b) {
      for (const double unit : {0.125, 0.5, 1.0}) {
        const double length = std::hypot(a, b * unit);
        for (int angle = 0; angle <= kAngles; ++angle) {
          const double radians = angle * std::numbers::pi / 2 / kAngles;
          const double moved = std::cos(radians) + unit * std::sin(radians);
          largest = std::max(largest, moved / length);
        }
      }
    }
  }
  EXPECT_LE(largest, Epsilon(kType) * (1 + 1e-12));
  EXPECT_GT(largest, 0.999 * Epsilon(kType));
}

class NormToleranceTest : public ::testing::Test {
 protected:
  static constexpr float kEps = 1.3e-6f;

  Kernel Norm(float eps) const {
    return [=, this](const TensorSet& set) {
      NormReference({.dtype = kType,
                     .num_tokens = kTokens,
                     .hidden_size = kHidden,
                     .eps = eps,
                     .x = set.At(x_),
                     .x_stride = kHidden,
                     .weight = set.At(weight_),
                     .out = set.At(out_),
                     .out_stride = kHidden});
    };
  }

  TensorList tensors_;
  const int x_ = tensors_.Random(kType, kTokens, kHidden, /*log2_scale=*/-6);
  const int weight_ = tensors_.Random(kType, 1, kHidden);
  const int out_ = tensors_.Output(kType, kTokens, kHidden, kElementwise);
};

// A scale in fp32 is within 4 units of 2^-23 of the exact one, and so is that of a mean square
// which is 2^-20 larger.
TEST_F(NormToleranceTest, StatisticInFp32Passes) {
  const float fp32_error = 0x1p-20f * 0x1p-12f * 4 / 3;
  const Comparison comparison = Compare(tensors_, Norm(kEps), Norm(kEps + fp32_error));
  EXPECT_THAT(comparison.first_failure, IsEmpty());
  EXPECT_GT(comparison.max_error_over_bound, 0) << "nothing was rounded to its other neighbour";
}

TEST_F(NormToleranceTest, IgnoredEpsIsRejected) {
  ExpectRejectedByTheMean(Compare(tensors_, Norm(kEps), Norm(0)));
}

TEST_F(NormToleranceTest, TruncationInsteadOfRoundingIsRejected) {
  ExpectRejectedByTheMean(Compare(tensors_, Norm(kEps), [&](const TensorSet& set) {
    Norm(kEps)(set);
    for (int64_t t = 0; t < kTokens; ++t) {
      double squares = 0;
      const auto x = [&](int64_t i) { return LoadElement(kType, set.At(x_), t * kHidden + i); };
      for (int64_t i = 0; i < kHidden; ++i) squares += x(i) * x(i);
      const double scale = 1 / std::sqrt(squares / kHidden + kEps);
      for (int64_t i = 0; i < kHidden; ++i) {
        const double exact = RoundTo(kType, x(i) * scale) * LoadElement(kType, set.At(weight_), i);
        const double unit = Epsilon(kType) * std::exp2(std::floor(std::log2(std::abs(exact))));
        StoreElement(kType, set.At(out_), t * kHidden + i, std::trunc(exact / unit) * unit);
      }
    }
  }));
}

class LinearToleranceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kOut = 512;

  void Linear(const TensorSet& set, int64_t first_token, int64_t tokens) const {
    LinearReference({.dtype = kType,
                     .num_tokens = tokens,
                     .in_features = kHidden,
                     .out_features = kOut,
                     .x = set.At<uint16_t>(x_) + first_token * kHidden,
                     .x_stride = kHidden,
                     .weight = set.At(weight_),
                     .out = set.At<uint16_t>(out_) + first_token * kOut,
                     .out_stride = kOut});
  }

  TensorList tensors_;
  const int x_ = tensors_.Random(kType, kTokens, kHidden);
  const int weight_ = tensors_.Random(kType, kOut, kHidden, WeightLog2Scale(kHidden));
  const int out_ = tensors_.Output(kType, kTokens, kOut, FusedSumTolerance(kType));
};

TEST_F(LinearToleranceTest, DroppedTailOfKInOnePercentOfTheRowsIsRejected) {
  const auto right = [&](const TensorSet& set) { Linear(set, 0, kTokens); };
  ExpectRejectedByTheMean(Compare(tensors_, right, [&](const TensorSet& set) {
    right(set);
    int64_t rows = 0;
    for (int64_t t = 0; t < kTokens && rows < kTokens / 100; ++t) {
      uint16_t& last = set.At<uint16_t>(x_)[t * kHidden + kHidden - 1];
      const double x = std::abs(LoadElement(kType, &last, 0));
      if (x < 0.35 || x > 0.5) continue;  // more would exceed the bound of an element
      const uint16_t kept = std::exchange(last, 0);
      Linear(set, t, 1);
      last = kept;
      ++rows;
    }
    ASSERT_EQ(rows, kTokens / 100);
  }));
}

TEST_F(LinearToleranceTest, SumsThatAreOnePercentTooSmallAreRejected) {
  const auto right = [&](const TensorSet& set) { Linear(set, 0, kTokens); };
  ExpectRejectedByTheMean(Compare(tensors_, right, [&](const TensorSet& set) {
    right(set);
    for (int64_t i = 0; i < kTokens * kOut; ++i) {
      StoreElement(kType, set.At(out_), i, 0.99 * LoadElement(kType, set.At(out_), i));
    }
  }));
}

// Norm, projection, head norms and rotation: the outputs that are rounded most often on their way.
TEST(FusedSumToleranceTest, StatisticsInFp32Pass) {
  constexpr int32_t kHeads = 14, kDim = 128;
  constexpr int64_t kOut = (kHeads + 2) * kDim;
  constexpr float kEps = 1e-6f, kFp32Error = 0x1p-20f * 4 / 3;
  const AppendBatch batch =
      OneSequence({.num_kv_heads = 1, .page_size = 256, .head_dim = kDim}, kTokens);
  TensorList tensors;
  const int x = tensors.Random(kType, kTokens, kHidden);
  const int norm = tensors.Random(kType, 1, kHidden);
  const int weight = tensors.Random(kType, kOut, kHidden, WeightLog2Scale(kHidden));
  const int qkv =
      tensors.Output(kType, kTokens, kOut, FusedSumTolerance(kType), int64_t{kHeads} * kDim);
  const int kv = tensors.Output(kType, batch.PoolRows(), kDim, FusedSumTolerance(kType));
  const int head_norm = tensors.Random(kType, 1, kDim);
  const int slots = tensors.Table(batch.slots), positions = tensors.Table(batch.positions);
  const int rope = tensors.Table(RopeTable(kTokens, kDim));
  const auto run = [&](float eps) -> Kernel {
    return [&, eps](const TensorSet& set) {
      RmsNormQkvReference({.projection = {.dtype = kType,
                                          .num_tokens = kTokens,
                                          .in_features = kHidden,
                                          .out_features = kOut,
                                          .x = set.At(x),
                                          .x_stride = kHidden,
                                          .norm_weight = set.At(norm),
                                          .norm_eps = eps,
                                          .weight = set.At(weight),
                                          .out = set.At(qkv),
                                          .out_stride = kOut},
                           .append = KvAppendParams{.num_q_heads = kHeads,
                                                    .layout = batch.layout,
                                                    .kv = set.At(kv),
                                                    .slots = set.At<int64_t>(slots),
                                                    .q_norm_weight = set.At(head_norm),
                                                    .k_norm_weight = set.At(head_norm),
                                                    .norm_eps = eps,
                                                    .positions = set.At<int32_t>(positions),
                                                    .rope_cos_sin = set.At<float>(rope),
                                                    .rope_rows = kTokens}});
    };
  };
  const Comparison comparison = Compare(tensors, run(kEps), run(kEps + kFp32Error));
  EXPECT_THAT(comparison.first_failure, IsEmpty());
  EXPECT_GT(comparison.max_error_over_bound, 0) << "nothing was rounded to its other neighbour";
}

}  // namespace
}  // namespace tokline::bench
