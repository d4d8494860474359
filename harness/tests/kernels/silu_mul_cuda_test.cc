#include <gmock/gmock.h>

#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/error.h"
#include "reference/silu_mul.h"

namespace tokline {
namespace {

using testing::HostTensor;

class SiluMulCudaTest : public testing::CudaTest {};

struct SiluMulShape {
  DType dtype;
  int64_t num_tokens, size, gap;  // gap: elements between rows that must stay untouched
};

// Expects values within one unit of the last place, nearly all of them equal, the gaps untouched.
void ExpectMatchesReference(const SiluMulShape& shape, const HostTensor& in, uint64_t seed) {
  SCOPED_TRACE(StrCat(Name(shape.dtype), " tokens ", shape.num_tokens, " size ", shape.size));
  SiluMulParams params{.dtype = shape.dtype,
                       .num_tokens = shape.num_tokens,
                       .intermediate_size = shape.size,
                       .gate_up_stride = 2 * shape.size + shape.gap,
                       .out_stride = shape.size + shape.gap};
  HostTensor expected(shape.dtype, shape.num_tokens * params.out_stride);
  expected.FillNan();
  const DeviceBuffer device_in = testing::ToDevice(in), device_out = testing::ToDevice(expected);
  params.gate_up = in.data();
  params.out = expected.data();
  SiluMulReference(params);
  params.gate_up = device_in.data();
  params.out = device_out.data();
  Launch(params, {});
  const HostTensor actual = testing::ToHost(device_out, shape.dtype);

  int64_t different = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    if (i % params.out_stride >= shape.size) {
      ASSERT_TRUE(std::isnan(actual[i])) << "the gap was written at " << i;
      continue;
    }
    if (actual[i] == expected[i]) continue;
    ++different;
    const int64_t up_at =
        i / params.out_stride * params.gate_up_stride + shape.size + i % params.out_stride;
    // One unit of the rounded silu, times up, and one of the result.
    const double silu = in[up_at] == 0 ? 0 : expected[i] / in[up_at];
    const double bound = 2 * testing::HalfUlp(shape.dtype, silu) * std::abs(in[up_at]) * 1.01 +
                         2 * testing::HalfUlp(shape.dtype, expected[i]);
    ASSERT_LE(std::abs(actual[i] - expected[i]), bound)
        << "index " << i << ": actual " << actual[i] << ", expected " << expected[i] << ", seed "
        << seed;
  }
  EXPECT_LE(different * 200, actual.size()) << "a rounding is misplaced; seed " << seed;
}

TEST_F(SiluMulCudaTest, RandomRowsMatchReference) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t size : {8, 1016, 3072, 9728}) {
      for (const int64_t tokens : {1, 3, 65}) {
        for (const int64_t gap : {0, 8}) {
          const uint64_t seed = static_cast<uint64_t>(size + tokens);
          ExpectMatchesReference({dtype, tokens, size, gap},
                                 testing::RandomTensor(dtype, tokens * (2 * size + gap), seed, 3),
                                 seed);
        }
      }
    }
  }
}

// exp of a large gate overflows fp32 in the plain formula from 88.7 on.
TEST_F(SiluMulCudaTest, GatesFromMinusToPlusThousandsMatchReference) {
  HostTensor in(DType::kBf16, 2 * 4096);
  for (int64_t i = 0; i < 4096; ++i) {
    in.Set(i, (static_cast<double>(i) - 2048) * (i % 2 ? 0.06 : 3.7));
    in.Set(4096 + i, i % 3 ? 1e20 : -2);  // makes far tails visible
  }
  ExpectMatchesReference({DType::kBf16, 1, 4096, 0}, in, 0);
}

// A grid dimension over 65,535 is a silent no-op where rows are mapped to y or z.
TEST_F(SiluMulCudaTest, SeventyThousandRowsAreAllWritten) {
  ExpectMatchesReference({DType::kF16, 70'000, 16, 0},
                         testing::RandomTensor(DType::kF16, 70'000 * 32, 9), 9);
}

TEST_F(SiluMulCudaTest, F32IsRefused) {
  const HostTensor in(DType::kF32, 16);
  HostTensor out(DType::kF32, 8);
  EXPECT_THAT(
      [&] {
        Launch({.dtype = DType::kF32,
                .num_tokens = 1,
                .intermediate_size = 8,
                .gate_up = in.data(),
                .out = out.data()},
               {});
      },
      ::testing::ThrowsMessage<InvalidArgument>(::testing::HasSubstr("supports bf16 and f16")));
}

}  // namespace
}  // namespace tokline
