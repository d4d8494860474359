// Gated SiLU and GELU without a device: known values, where the reference rounds, cost, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/kernels/check.h"
#include "kernels/common/error.h"
#include "reference/activation.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using ::testing::ThrowsMessage;

constexpr ActivationKind kKinds[] = {ActivationKind::kGatedSilu, ActivationKind::kGeluTanh};

// The result of one row with eight equal gates and ups.
double GatedSiluOf(DType dtype, double gate, double up) {
  HostTensor in(dtype, 16), out(dtype, 8);
  for (int64_t i = 0; i < 8; ++i) {
    in.Set(i, gate);
    in.Set(8 + i, up);
  }
  ActivationReference(
      {.dtype = dtype, .num_tokens = 1, .intermediate_size = 8, .x = in.data(), .out = out.data()});
  for (int64_t i = 1; i < 8; ++i) EXPECT_EQ(out[i], out[0]);
  return out[0];
}

TEST(GatedSiluTest, KnownValues) {
  EXPECT_FLOAT_EQ(GatedSiluOf(DType::kF32, 1, 2), 2 * 0.7310585786300049);
  EXPECT_FLOAT_EQ(GatedSiluOf(DType::kF32, -2, 1), -0.2384058440442351);
  EXPECT_EQ(GatedSiluOf(DType::kF32, 0, 5), 0);
  EXPECT_EQ(GatedSiluOf(DType::kBf16, 200, 3), 600);  // silu is the identity for large gates
  EXPECT_EQ(GatedSiluOf(DType::kBf16, -1e30, 3), 0);  // exp(1e30) must not turn into NaN
}

TEST(GatedSiluTest, SiluIsRoundedBeforeItMeetsUp) {
  int differs = 0;
  for (int i = 1; i < 200; ++i) {
    const double gate = RoundTo(DType::kBf16, i * 0.0173), up = 1.5703125;
    const double silu = gate / (1 + std::exp(-gate));
    const double expected = RoundTo(DType::kBf16, RoundTo(DType::kBf16, silu) * up);
    EXPECT_EQ(GatedSiluOf(DType::kBf16, gate, up), expected) << "gate " << gate;
    differs += expected != RoundTo(DType::kBf16, silu * up);
  }
  EXPECT_GT(differs, 10) << "the gates cannot tell one rounding from two";
}

// The result of one row with eight equal elements.
double GeluOf(DType dtype, double x) {
  HostTensor in(dtype, 8), out(dtype, 8);
  for (int64_t i = 0; i < 8; ++i) in.Set(i, x);
  ActivationReference({.kind = ActivationKind::kGeluTanh,
                       .dtype = dtype,
                       .num_tokens = 1,
                       .intermediate_size = 8,
                       .x = in.data(),
                       .out = out.data()});
  for (int64_t i = 1; i < 8; ++i) EXPECT_EQ(out[i], out[0]);
  return out[0];
}

TEST(GeluTest, KnownValuesOfTheTanhForm) {
  EXPECT_EQ(GeluOf(DType::kF32, 0), 0);
  EXPECT_FLOAT_EQ(GeluOf(DType::kF32, 1), 0.8411919906082768);
  EXPECT_FLOAT_EQ(GeluOf(DType::kF32, -1), -0.15880800939172324);
  EXPECT_FLOAT_EQ(GeluOf(DType::kF32, 3), 2.9963627);
  // The form with erf differs: -0.15865525.
  EXPECT_GT(std::abs(GeluOf(DType::kF32, -1) + 0.15865525), 1e-4);
}

TEST(GeluTest, TailsKeepTheirDigitsAndNeverOverflow) {
  // There is still a value where 1 + tanh(z) has cancelled to nothing in fp32.
  EXPECT_EQ(GeluOf(DType::kBf16, -7), RoundTo(DType::kBf16, -2.315442262072538e-15));
  EXPECT_EQ(GeluOf(DType::kBf16, 200), 200);
  EXPECT_EQ(GeluOf(DType::kBf16, -200), 0);
  EXPECT_EQ(GeluOf(DType::kBf16, RoundTo(DType::kBf16, 1e38)), RoundTo(DType::kBf16, 1e38));
  EXPECT_EQ(GeluOf(DType::kBf16, -1e38), 0);
}

TEST(ActivationTest, StridesKeepRowsApart) {
  for (const ActivationKind kind : kKinds) {
    HostTensor in = testing::RandomTensor(DType::kBf16, 3 * 64, 1), out(DType::kBf16, 3 * 24);
    out.FillNan();
    ActivationReference({.kind = kind,
                         .num_tokens = 3,
                         .intermediate_size = 16,
                         .x = in.data(),
                         .x_stride = 64,
                         .out = out.data(),
                         .out_stride = 24});
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t i = 0; i < 24; ++i) {
        const double x = in[t * 64 + i];
        if (i >= 16) {
          EXPECT_TRUE(std::isnan(out[t * 24 + i])) << "the gap was written";
        } else if (kind == ActivationKind::kGeluTanh) {
          EXPECT_EQ(out[t * 24 + i], GeluOf(DType::kBf16, x));
        } else {
          EXPECT_EQ(out[t * 24 + i], GatedSiluOf(DType::kBf16, x, in[t * 64 + 16 + i]));
        }
      }
    }
  }
}

TEST(ActivationTest, CostMatchesBruteForceCount) {
  for (const ActivationKind kind : kKinds) {
    const bool gated = kind == ActivationKind::kGatedSilu;
    double read = 0, written = 0, flops = 0;
    for (int i = 0; i < 7 * 24; ++i) {
      read += gated ? 2 + 2 : 2;
      written += 2;
      flops += gated ? 5 : 9;
    }
    const Cost cost = CostOf({.kind = kind, .num_tokens = 7, .intermediate_size = 24});
    EXPECT_EQ(cost.read_bytes, read);
    EXPECT_EQ(cost.write_bytes, written);
    EXPECT_EQ(cost.flops, flops);
  }
}

// Applies the same change to both kinds; gated SiLU has rows of 32, GELU of 16.
template <typename Change>
void ExpectRejected(ActivationKind kind, const Change& change, const char* message) {
  HostTensor in(DType::kBf16, 64), out(DType::kBf16, 64);
  ActivationParams params{.kind = kind,
                          .num_tokens = 2,
                          .intermediate_size = 16,
                          .x = in.data(),
                          .out = out.data(),
                          .out_stride = 16};
  params.x_stride = InputSize(params);
  EXPECT_NO_THROW(Validate(params));
  change(params);
  EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(ActivationTest, InvalidParamsAreRefusedWithTheirValues) {
  for (const ActivationKind kind : kKinds) {
    const auto rejected = [&](const auto& change, const char* message) {
      ExpectRejected(kind, change, message);
    };
    rejected([](auto& p) { p.num_tokens = -1; }, "num_tokens is -1");
    rejected([](auto& p) { p.intermediate_size = 12; }, "intermediate_size is 12");
    rejected([](auto& p) { p.x_stride = 8; }, "x_stride is 8");
    rejected([](auto& p) { p.x_stride = 33; }, "x_stride is 33");
    rejected([](auto& p) { p.out_stride = 8; }, "out_stride is 8");
    rejected([](auto& p) { p.out_stride = 17; }, "out_stride is 17");
    rejected([](auto& p) { p.x = nullptr; }, "x is null");
    rejected([](auto& p) { p.out = static_cast<char*>(p.out) + 4; }, "out is at");
    rejected(
        [](auto& p) {
          p.out = const_cast<void*>(p.x);
          p.out_stride = 48;
        },
        "one tensor, but have strides");
  }
  ExpectRejected(
      ActivationKind::kGatedSilu, [](auto& p) { p.x_stride = 24; }, "x_stride is 24");
}

TEST(ActivationTest, NoTokensIsValid) {
  for (const ActivationKind kind : kKinds) {
    EXPECT_NO_THROW(ActivationReference({.kind = kind, .intermediate_size = 8}));
  }
}

}  // namespace
}  // namespace tokline
