#include <gtest/gtest.h>

#include "harness/tests/kernels/check.h"
#include "kernels/common/error.h"
#include "reference/reference_ops.h"

namespace tokline {
namespace {

using testing::HostTensor;

TEST(ToyTest, ScalesEveryElement) {
  const HostTensor x = testing::IntegerTensor(DType::kBf16, 9, /*seed=*/1, -8, 8);
  HostTensor y(DType::kBf16, 9);
  ToyReference({.size = 9, .scale = 3, .x = x.data(), .y = y.data()});
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(y[i], 3 * x[i]);
}

TEST(ToyTest, AnEmptyVectorIsRefused) { EXPECT_THROW(Validate(ToyParams{}), InvalidArgument); }

TEST(ToyTest, CostIsOneReadOneWriteAndOneProductPerElement) {
  const Cost cost = CostOf(ToyParams{.dtype = DType::kF32, .size = 10});
  EXPECT_EQ(cost.read_bytes, 40);
  EXPECT_EQ(cost.write_bytes, 40);
  EXPECT_EQ(cost.flops, 10);
}

// What follows from the one line in CMakeLists.txt.
TEST(ToyTest, TheListOfKernelsHasIt) {
  EXPECT_EQ(std::size(kKernelNames), 1u);
  EXPECT_EQ(kKernelNames[0], "toy");
  EXPECT_EQ(KernelName(ToyParams{}), "toy");
  const HostTensor x = testing::IntegerTensor(DType::kF32, 1, /*seed=*/1, 5, 5);
  HostTensor y(DType::kF32, 1);
  const Op<ToyParams> op = MakeReferenceOps().toy;
  op({.dtype = DType::kF32, .size = 1, .scale = 2, .x = x.data(), .y = y.data()}, {});
  EXPECT_EQ(y[0], 10);
}

}  // namespace
}  // namespace tokline
