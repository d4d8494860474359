#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/kernels/check.h"
#include "kernels/common/error.h"
#include "reference/silu_mul.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using ::testing::ThrowsMessage;

// One row of eight equal gates and ups.
double SiluMulOf(DType dtype, double gate, double up) {
  HostTensor in(dtype, 16), out(dtype, 8);
  for (int64_t i = 0; i < 8; ++i) {
    in.Set(i, gate);
    in.Set(8 + i, up);
  }
  SiluMulReference({.dtype = dtype,
                    .num_tokens = 1,
                    .intermediate_size = 8,
                    .gate_up = in.data(),
                    .out = out.data()});
  for (int64_t i = 1; i < 8; ++i) EXPECT_EQ(out[i], out[0]);
  return out[0];
}

TEST(SiluMulTest, KnownValues) {
  EXPECT_FLOAT_EQ(SiluMulOf(DType::kF32, 1, 2), 2 * 0.7310585786300049);
  EXPECT_FLOAT_EQ(SiluMulOf(DType::kF32, -2, 1), -0.2384058440442351);
  EXPECT_EQ(SiluMulOf(DType::kF32, 0, 5), 0);
  EXPECT_EQ(SiluMulOf(DType::kBf16, 200, 3), 600);  // silu is the identity far up
  EXPECT_EQ(SiluMulOf(DType::kBf16, -1e30, 3), 0);  // exp(1e30) must not turn into NaN
}

TEST(SiluMulTest, SiluIsRoundedBeforeItMeetsUp) {
  int differs = 0;
  for (int i = 1; i < 200; ++i) {
    const double gate = RoundTo(DType::kBf16, i * 0.0173), up = 1.5703125;
    const double silu = gate / (1 + std::exp(-gate));
    const double expected = RoundTo(DType::kBf16, RoundTo(DType::kBf16, silu) * up);
    EXPECT_EQ(SiluMulOf(DType::kBf16, gate, up), expected) << "gate " << gate;
    differs += expected != RoundTo(DType::kBf16, silu * up);
  }
  EXPECT_GT(differs, 10) << "the gates cannot tell one rounding from two";
}

TEST(SiluMulTest, StridesKeepRowsApart) {
  HostTensor in = testing::RandomTensor(DType::kBf16, 3 * 64, 1), out(DType::kBf16, 3 * 24);
  out.FillNan();
  const SiluMulParams params{.num_tokens = 3,
                             .intermediate_size = 16,
                             .gate_up = in.data(),
                             .gate_up_stride = 64,
                             .out = out.data(),
                             .out_stride = 24};
  SiluMulReference(params);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 24; ++i) {
      if (i >= 16) {
        EXPECT_TRUE(std::isnan(out[t * 24 + i])) << "the gap was written";
      } else {
        const double g = in[t * 64 + i];
        EXPECT_EQ(out[t * 24 + i],
                  RoundTo(DType::kBf16,
                          RoundTo(DType::kBf16, g / (1 + std::exp(-g))) * in[t * 64 + 16 + i]));
      }
    }
  }
}

TEST(SiluMulTest, CostMatchesBruteForceCount) {
  double read = 0, written = 0, flops = 0;
  for (int t = 0; t < 7; ++t) {
    for (int i = 0; i < 24; ++i) {
      read += 2 + 2;
      written += 2;
      flops += 5;  // -, exp, +, /, *
    }
  }
  const Cost cost = CostOf({.num_tokens = 7, .intermediate_size = 24});
  EXPECT_EQ(cost.read_bytes, read);
  EXPECT_EQ(cost.write_bytes, written);
  EXPECT_EQ(cost.flops, flops);
}

template <typename Change>
void ExpectRejected(const Change& change, const char* message) {
  HostTensor in(DType::kBf16, 64), out(DType::kBf16, 32);
  SiluMulParams params{.num_tokens = 2,
                       .intermediate_size = 16,
                       .gate_up = in.data(),
                       .gate_up_stride = 32,
                       .out = out.data(),
                       .out_stride = 16};
  EXPECT_NO_THROW(Validate(params));
  change(params);
  EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(SiluMulTest, InvalidParamsAreRefusedWithTheirValues) {
  ExpectRejected([](auto& p) { p.num_tokens = -1; }, "num_tokens is -1");
  ExpectRejected([](auto& p) { p.intermediate_size = 12; }, "intermediate_size is 12");
  ExpectRejected([](auto& p) { p.gate_up_stride = 24; }, "gate_up_stride is 24");
  ExpectRejected([](auto& p) { p.gate_up_stride = 33; }, "gate_up_stride is 33");
  ExpectRejected([](auto& p) { p.out_stride = 8; }, "out_stride is 8");
  ExpectRejected([](auto& p) { p.gate_up = nullptr; }, "gate_up is null");
  ExpectRejected([](auto& p) { p.out = static_cast<char*>(p.out) + 4; }, "out is at");
}

TEST(SiluMulTest, NoTokensIsValid) { EXPECT_NO_THROW(SiluMulReference({.intermediate_size = 8})); }

}  // namespace
}  // namespace tokline
