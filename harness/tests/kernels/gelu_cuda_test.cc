#include <gmock/gmock.h>

#include <cstring>

#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/error.h"
#include "reference/gelu.h"

namespace tokline {
namespace {

using testing::HostTensor;

class GeluCudaTest : public testing::CudaTest {};

struct GeluShape {
  DType dtype;
  int64_t num_tokens, size, gap;  // gap: elements between rows that must stay untouched
};

// Expects values within one unit of the last place, nearly all of them equal, the gaps untouched.
void ExpectMatchesReference(const GeluShape& shape, const HostTensor& in, uint64_t seed) {
  SCOPED_TRACE(StrCat(Name(shape.dtype), " tokens ", shape.num_tokens, " size ", shape.size));
  GeluParams params{.dtype = shape.dtype,
                    .num_tokens = shape.num_tokens,
                    .intermediate_size = shape.size,
                    .x_stride = shape.size + shape.gap,
                    .out_stride = shape.size + shape.gap};
  HostTensor expected(shape.dtype, shape.num_tokens * params.out_stride);
  expected.FillNan();
  const DeviceBuffer device_in = testing::ToDevice(in), device_out = testing::ToDevice(expected);
  params.x = in.data();
  params.out = expected.data();
  GeluReference(params);
  params.x = device_in.data();
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
    ASSERT_LE(std::abs(actual[i] - expected[i]), 2 * testing::HalfUlp(shape.dtype, expected[i]))
        << "index " << i << ": actual " << actual[i] << ", expected " << expected[i] << ", of "
        << in[i] << ", seed " << seed;
  }
  EXPECT_LE(different * 100, actual.size()) << "more than roundings differ; seed " << seed;
}

TEST_F(GeluCudaTest, RandomRowsMatchReference) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    for (const int64_t size : {8, 1016, 3072, 6400}) {
      for (const int64_t tokens : {1, 3, 65}) {
        for (const int64_t gap : {0, 8}) {
          const uint64_t seed = static_cast<uint64_t>(size + tokens);
          ExpectMatchesReference({dtype, tokens, size, gap},
                                 testing::RandomTensor(dtype, tokens * (size + gap), seed, 3),
                                 seed);
        }
      }
    }
  }
}

// Every bf16 value but NaN and the infinities.
TEST_F(GeluCudaTest, AllOfBf16MatchesReference) {
  HostTensor in(DType::kBf16, 65536);
  for (int64_t bits = 0; bits < 65536; ++bits) {
    const bool finite = (bits >> 7 & 0xff) != 0xff;
    const auto stored = static_cast<uint16_t>(finite ? bits : 0);
    std::memcpy(in.bytes().data() + 2 * bits, &stored, sizeof(stored));
  }
  ExpectMatchesReference({DType::kBf16, 1, 65536, 0}, in, 0);
}

TEST_F(GeluCudaTest, OutMayBeX) {
  const HostTensor in = testing::RandomTensor(DType::kBf16, 5 * 3072, 4);
  const DeviceBuffer x = testing::ToDevice(in), out = testing::ToDevice(in);
  GeluParams params{.num_tokens = 5,
                    .intermediate_size = 3072,
                    .x = x.data(),
                    .x_stride = 3072,
                    .out = out.data(),
                    .out_stride = 3072};
  Launch(params, {});
  params.out = x.data();
  Launch(params, {});
  EXPECT_TRUE(testing::ToHost(x, DType::kBf16) == testing::ToHost(out, DType::kBf16));
}

// A grid dimension over 65,535 is a silent no-op where rows are mapped to y or z.
TEST_F(GeluCudaTest, SeventyThousandRowsAreAllWritten) {
  ExpectMatchesReference({DType::kF16, 70'000, 16, 0},
                         testing::RandomTensor(DType::kF16, 70'000 * 16, 9), 9);
}

TEST_F(GeluCudaTest, F32IsRefused) {
  const HostTensor in(DType::kF32, 8);
  HostTensor out(DType::kF32, 8);
  EXPECT_THAT(
      [&] {
        Launch(GeluParams{.dtype = DType::kF32,
                          .num_tokens = 1,
                          .intermediate_size = 8,
                          .x = in.data(),
                          .out = out.data()},
               {});
      },
      ::testing::ThrowsMessage<InvalidArgument>(::testing::HasSubstr("supports bf16 and f16")));
}

}  // namespace
}  // namespace tokline
