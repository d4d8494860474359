#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/kernels/check.h"
#include "kernels/common/error.h"
#include "reference/gelu.h"

namespace tokline {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using ::testing::ThrowsMessage;

// One row of eight equal elements.
double GeluOf(DType dtype, double x) {
  HostTensor in(dtype, 8), out(dtype, 8);
  for (int64_t i = 0; i < 8; ++i) in.Set(i, x);
  GeluReference(
      {.dtype = dtype, .num_tokens = 1, .intermediate_size = 8, .x = in.data(), .out = out.data()});
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
  // Where 1 + tanh(z) has cancelled to nothing in fp32 there is still a value.
  EXPECT_EQ(GeluOf(DType::kBf16, -7), RoundTo(DType::kBf16, -2.315442262072538e-15));
  EXPECT_EQ(GeluOf(DType::kBf16, 200), 200);
  EXPECT_EQ(GeluOf(DType::kBf16, -200), 0);
  EXPECT_EQ(GeluOf(DType::kBf16, RoundTo(DType::kBf16, 1e38)), RoundTo(DType::kBf16, 1e38));
  EXPECT_EQ(GeluOf(DType::kBf16, -1e38), 0);
}

TEST(GeluTest, StridesKeepRowsApart) {
  HostTensor in = testing::RandomTensor(DType::kBf16, 3 * 32, 1), out(DType::kBf16, 3 * 24);
  out.FillNan();
  GeluReference({.num_tokens = 3,
                 .intermediate_size = 16,
                 .x = in.data(),
                 .x_stride = 32,
                 .out = out.data(),
                 .out_stride = 24});
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 24; ++i) {
      if (i >= 16) {
        EXPECT_TRUE(std::isnan(out[t * 24 + i])) << "the gap was written";
      } else {
        EXPECT_EQ(out[t * 24 + i], GeluOf(DType::kBf16, in[t * 32 + i]));
      }
    }
  }
}

TEST(GeluTest, CostMatchesBruteForceCount) {
  double read = 0, written = 0, flops = 0;
  for (int i = 0; i < 7 * 24; ++i) {
    read += 2;
    written += 2;
    flops += 9;
  }
  const Cost cost = CostOf(GeluParams{.num_tokens = 7, .intermediate_size = 24});
  EXPECT_EQ(cost.read_bytes, read);
  EXPECT_EQ(cost.write_bytes, written);
  EXPECT_EQ(cost.flops, flops);
}

template <typename Change>
void ExpectRejected(const Change& change, const char* message) {
  HostTensor in(DType::kBf16, 64), out(DType::kBf16, 64);
  GeluParams params{.num_tokens = 2,
                    .intermediate_size = 16,
                    .x = in.data(),
                    .x_stride = 16,
                    .out = out.data(),
                    .out_stride = 16};
  EXPECT_NO_THROW(Validate(params));
  change(params);
  EXPECT_THAT([&] { Validate(params); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
}

TEST(GeluTest, InvalidParamsAreRefusedWithTheirValues) {
  ExpectRejected([](auto& p) { p.num_tokens = -1; }, "num_tokens is -1");
  ExpectRejected([](auto& p) { p.intermediate_size = 12; }, "intermediate_size is 12");
  ExpectRejected([](auto& p) { p.x_stride = 8; }, "x_stride is 8");
  ExpectRejected([](auto& p) { p.out_stride = 17; }, "out_stride is 17");
  ExpectRejected([](auto& p) { p.x = nullptr; }, "x is null");
  ExpectRejected([](auto& p) { p.out = static_cast<char*>(p.out) + 4; }, "out is at");
  ExpectRejected(
      [](auto& p) {
        p.out = const_cast<void*>(p.x);
        p.out_stride = 24;
      },
      "one tensor, but have strides 16 and 24");
}

TEST(GeluTest, NoTokensIsValid) { EXPECT_NO_THROW(GeluReference({.intermediate_size = 8})); }

}  // namespace
}  // namespace tokline
