#include "harness/tests/kernels/cuda_test.h"
#include "reference/toy.h"

namespace tokline {
namespace {

class ToyCudaTest : public testing::CudaTest {};

TEST_F(ToyCudaTest, MatchesReference) {
  const testing::HostTensor x = testing::RandomTensor(DType::kF32, 1000, /*seed=*/1);
  testing::HostTensor y(DType::kF32, 1000);
  const DeviceBuffer device_x = testing::ToDevice(x), device_y = testing::ToDevice(y);
  ToyParams params{.dtype = DType::kF32, .size = 1000, .scale = 3, .x = x.data(), .y = y.data()};
  ToyReference(params);
  params.x = device_x.data();
  params.y = device_y.data();
  Launch(params, {});
  EXPECT_TRUE(testing::ToHost(device_y, DType::kF32) == y);
}

}  // namespace
}  // namespace tokline
