// Gated SiLU and GELU on the device: elements differ from the reference by a rounding at most, and
// nearly all do not differ.
#include <gmock/gmock.h>

#include <cstring>

#include "harness/platform/cuda_handles.h"
#include "harness/tests/kernels/cuda_test.h"
#include "kernels/common/error.h"
#include "reference/activation.h"

namespace tokline {
namespace {

using testing::HostTensor;

constexpr ActivationKind kKinds[] = {ActivationKind::kGatedSilu, ActivationKind::kGeluTanh};

class ActivationCudaTest : public testing::CudaTest {};

struct ActivationShape {
  ActivationKind kind;
  DType dtype;
  int64_t num_tokens, size, gap;  // gap: elements between rows that must stay untouched
};

// Expects each value within one ulp, nearly all values equal, and the gaps untouched. The root mean
// square of the errors is then at most a tenth of the bounds, far below that of a truncation.
void ExpectMatchesReference(const ActivationShape& shape, const HostTensor& in, uint64_t seed) {
  SCOPED_TRACE(StrCat(Name(shape.kind), " ", Name(shape.dtype), " tokens ", shape.num_tokens,
                      " size ", shape.size));
  const bool gated = shape.kind == ActivationKind::kGatedSilu;
  ActivationParams params{.kind = shape.kind,
                          .dtype = shape.dtype,
                          .num_tokens = shape.num_tokens,
                          .intermediate_size = shape.size,
                          .x_stride = (gated ? 2 : 1) * shape.size + shape.gap,
                          .out_stride = shape.size + shape.gap};
  HostTensor expected(shape.dtype, shape.num_tokens * params.out_stride);
  expected.FillNan();
  const DeviceBuffer device_in = testing::ToDevice(in), device_out = testing::ToDevice(expected);
  params.x = in.data();
  params.out = expected.data();
  ActivationReference(params);
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
    double bound = 2 * testing::HalfUlp(shape.dtype, expected[i]);
    const int64_t in_at = i / params.out_stride * params.x_stride + i % params.out_stride;
    if (gated) {  // one ulp of the rounded silu, times up, in addition to one of the result
      const double up = in[in_at + shape.size];
      const double silu = up == 0 ? 0 : expected[i] / up;
      bound += 2 * testing::HalfUlp(shape.dtype, silu) * std::abs(up) * 1.01;
    }
    ASSERT_LE(std::abs(actual[i] - expected[i]), bound)
        << "index " << i << ": actual " << actual[i] << ", expected " << expected[i] << ", of "
        << in[in_at] << ", seed " << seed;
  }
  EXPECT_LE(different * (gated ? 200 : 100), actual.size())
      << "a rounding is misplaced; seed " << seed;
}

TEST_F(ActivationCudaTest, RandomRowsMatchReference) {
  for (const ActivationKind kind : kKinds) {
    const int64_t inputs = kind == ActivationKind::kGatedSilu ? 2 : 1;
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      for (const int64_t size : {8, 1016, 3072, 6400, 9728}) {
        for (const int64_t tokens : {1, 3, 65}) {
          for (const int64_t gap : {0, 8}) {
            const uint64_t seed = static_cast<uint64_t>(size + tokens);
            ExpectMatchesReference(
                {kind, dtype, tokens, size, gap},
                testing::RandomTensor(dtype, tokens * (inputs * size + gap), seed, 3), seed);
          }
        }
      }
    }
  }
}

// exp of a large gate overflows fp32 in the plain formula from 88.7 on.
TEST_F(ActivationCudaTest, GatesFromMinusToPlusThousandsMatchReference) {
  HostTensor in(DType::kBf16, 2 * 4096);
  for (int64_t i = 0; i < 4096; ++i) {
    in.Set(i, (static_cast<double>(i) - 2048) * (i % 2 ? 0.06 : 3.7));
    in.Set(4096 + i, i % 3 ? 1e20 : -2);  // makes the far tails visible
  }
  ExpectMatchesReference({ActivationKind::kGatedSilu, DType::kBf16, 1, 4096, 0}, in, 0);
}

// Every bf16 value except NaN and the infinities.
TEST_F(ActivationCudaTest, GeluOfAllOfBf16MatchesReference) {
  HostTensor in(DType::kBf16, 65536);
  for (int64_t bits = 0; bits < 65536; ++bits) {
    const bool finite = (bits >> 7 & 0xff) != 0xff;
    const auto stored = static_cast<uint16_t>(finite ? bits : 0);
    std::memcpy(in.bytes().data() + 2 * bits, &stored, sizeof(stored));
  }
  ExpectMatchesReference({ActivationKind::kGeluTanh, DType::kBf16, 1, 65536, 0}, in, 0);
}

TEST_F(ActivationCudaTest, OutMayBeX) {
  for (const ActivationKind kind : kKinds) {
    const HostTensor in = testing::RandomTensor(DType::kBf16, 5 * 6144, 4);
    const DeviceBuffer x = testing::ToDevice(in), out = testing::ToDevice(in);
    ActivationParams params{.kind = kind,
                            .num_tokens = 5,
                            .intermediate_size = 3072,
                            .x = x.data(),
                            .x_stride = 6144,
                            .out = out.data(),
                            .out_stride = 6144};
    Launch(params, {});
    params.out = x.data();
    Launch(params, {});
    EXPECT_TRUE(testing::ToHost(x, DType::kBf16) == testing::ToHost(out, DType::kBf16));
  }
}

// A grid dimension over 65,535 is a silent no-op where rows are mapped to y or z.
TEST_F(ActivationCudaTest, SeventyThousandRowsAreAllWritten) {
  for (const ActivationKind kind : kKinds) {
    const int64_t inputs = kind == ActivationKind::kGatedSilu ? 2 : 1;
    ExpectMatchesReference({kind, DType::kF16, 70'000, 16, 0},
                           testing::RandomTensor(DType::kF16, 70'000 * 16 * inputs, 9), 9);
  }
}

#if CUDART_VERSION >= 12080
// The percentage of an SM's memory that a launch asks for as shared memory.
int SharedPercent(const ActivationParams& params) {
  const cudaStream_t stream = WorkStream();
  TOKLINE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Launch(params, {.stream = stream});
  cudaGraph_t captured = nullptr;
  TOKLINE_CUDA(cudaStreamEndCapture(stream, &captured));
  const UniqueGraph graph(captured);
  cudaGraphNode_t node = nullptr;
  size_t nodes = 1;
  TOKLINE_CUDA(cudaGraphGetNodes(graph.get(), &node, &nodes));
  EXPECT_EQ(nodes, 1u);
  cudaLaunchAttributeValue value{};
  TOKLINE_CUDA(cudaGraphKernelNodeGetAttribute(
      node, cudaLaunchAttributePreferredSharedMemoryCarveout, &value));
  return static_cast<int>(value.sharedMemCarveout);
}

// Launches that move 16 MB and more leave most of the memory to L1; shorter ones do not, because an
// SM has to drain before it changes the split.
TEST_F(ActivationCudaTest, LongLaunchesTakeALargerL1) {
  const HostTensor values(DType::kBf16, 2048 * 3 * 1408);
  const DeviceBuffer memory = testing::ToDevice(values);
  ActivationParams params{.kind = ActivationKind::kGatedSilu,
                          .dtype = DType::kBf16,
                          .num_tokens = 2048,
                          .intermediate_size = 1408,
                          .x = memory.data(),
                          .x_stride = 2 * 1408,
                          .out = memory.as<uint16_t>() + int64_t{2048} * 2 * 1408,
                          .out_stride = 1408};
  EXPECT_EQ(SharedPercent(params), 25);
  params.num_tokens = 1024;  // 8.7 MB
  EXPECT_NE(SharedPercent(params), 25);
}
#endif

TEST_F(ActivationCudaTest, F32IsRefused) {
  const HostTensor in(DType::kF32, 16);
  HostTensor out(DType::kF32, 8);
  EXPECT_THAT(
      [&] {
        Launch(ActivationParams{.dtype = DType::kF32,
                                .num_tokens = 1,
                                .intermediate_size = 8,
                                .x = in.data(),
                                .out = out.data()},
               {});
      },
      ::testing::ThrowsMessage<InvalidArgument>(
          ::testing::HasSubstr("supported on CUDA are bf16, f16")));
}

}  // namespace
}  // namespace tokline
