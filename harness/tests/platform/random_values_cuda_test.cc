#include "harness/platform/random_values.h"

#include <vector>

#include "harness/tests/kernels/cuda_test.h"

namespace tokline {
namespace {

class RandomValuesCudaTest : public testing::CudaTest {};

TEST_F(RandomValuesCudaTest, DeviceAndHostMakeTheSameElements) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t count : {1, 3, 4, 1000003}) {
      DeviceBuffer device(count * SizeOf(dtype));
      FillRandomOnDevice(dtype, device.data(), count, /*seed=*/17, /*log2_scale=*/-2);
      testing::HostTensor host(dtype, count);
      FillRandom(dtype, host.data(), 0, count, /*seed=*/17, /*log2_scale=*/-2);
      EXPECT_TRUE(testing::ToHost(device, dtype) == host) << Name(dtype) << ", " << count;
    }
  }
}

TEST_F(RandomValuesCudaTest, PiecesOfASequenceToo) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const RandomPieces& pieces :
         {RandomPieces{.first = 8, .length = 1003}, RandomPieces{16, 700, 24, 4096}}) {
      DeviceBuffer device(pieces.Count() * SizeOf(dtype));
      FillRandomOnDevice(dtype, device.data(), pieces, /*seed=*/17, /*log2_scale=*/-2);
      testing::HostTensor host(dtype, pieces.Count());
      FillRandom(dtype, host.data(), pieces, /*seed=*/17, /*log2_scale=*/-2);
      EXPECT_TRUE(testing::ToHost(device, dtype) == host) << Name(dtype) << " " << pieces.pieces;
    }
  }
}

}  // namespace
}  // namespace tokline
