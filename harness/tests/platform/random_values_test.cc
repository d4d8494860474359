// Random values on the host: an element depends on its seed and index alone, and lies in the stated
// range.
#include "harness/platform/random_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "kernels/common/error.h"
#include "reference/elements.h"

namespace tokline {
namespace {

std::vector<unsigned char> Filled(DType dtype, int64_t first, int64_t count, uint64_t seed,
                                  int log2_scale = 0) {
  std::vector<unsigned char> bytes(static_cast<size_t>(count * SizeOf(dtype)));
  FillRandom(dtype, bytes.data(), first, count, seed, log2_scale);
  return bytes;
}

class RandomValuesTest : public ::testing::TestWithParam<DType> {};

TEST_P(RandomValuesTest, AnElementDependsOnSeedAndIndexAlone) {
  const DType dtype = GetParam();
  const std::vector<unsigned char> all = Filled(dtype, 0, 100, 3);
  for (int64_t first = 0; first < 20; ++first) {
    const std::vector<unsigned char> part = Filled(dtype, first, 37, 3);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first * SizeOf(dtype)))
        << "from element " << first;
  }
  EXPECT_NE(all, Filled(dtype, 0, 100, 4));
}

TEST_P(RandomValuesTest, PiecesAreThoseOfTheSequence) {
  const DType dtype = GetParam();
  const auto size = static_cast<size_t>(SizeOf(dtype));
  const std::vector<unsigned char> all = Filled(dtype, 0, 100, 3);
  std::vector<unsigned char> pieces(3 * 8 * size), expected;
  FillRandom(dtype, pieces.data(), {.first = 4, .pieces = 3, .length = 8, .stride = 24}, 3, 0);
  for (const size_t first : {4, 28, 52}) {
    const auto begin = all.begin() + static_cast<int64_t>(first * size);
    expected.insert(expected.end(), begin, begin + static_cast<int64_t>(8 * size));
  }
  EXPECT_EQ(pieces, expected);
  EXPECT_THROW(FillRandom(dtype, pieces.data(), {.first = 2, .length = 4}, 3, 0), InvalidArgument);
}

TEST_P(RandomValuesTest, ValuesAreUniformInTheStatedRange) {
  const DType dtype = GetParam();
  constexpr int64_t kCount = 200000;
  const std::vector<unsigned char> bytes = Filled(dtype, 0, kCount, 5, /*log2_scale=*/1);
  double sum = 0, squares = 0;
  std::set<double> distinct;
  for (int64_t i = 0; i < kCount; ++i) {
    const double value = LoadElement(dtype, bytes.data(), i);
    ASSERT_TRUE(std::abs(value) > 0 && std::abs(value) < 4) << value;
    sum += value;
    squares += value * value;
    distinct.insert(value);
  }
  EXPECT_NEAR(sum / kCount, 0, 0.03);
  EXPECT_NEAR(squares / kCount, 16.0 / 3, 0.1);  // of uniform (-4, 4)
  EXPECT_GT(distinct.size(), 1000u);
}

TEST_P(RandomValuesTest, TheSmallestScaleHasNoSubnormals) {
  const DType dtype = GetParam();
  const std::vector<unsigned char> bytes = Filled(dtype, 0, 100000, 6, kMinLog2Scale);
  for (int64_t i = 0; i < 100000; ++i) {
    ASSERT_GE(std::abs(LoadElement(dtype, bytes.data(), i)), 0x1p-14);
  }
  unsigned char out[4];
  EXPECT_THROW(FillRandom(dtype, out, 0, 1, 0, kMinLog2Scale - 1), InvalidArgument);
}

TEST(RandomValuesAcrossTypesTest, BothTwoByteTypesHoldTheSameValues) {
  const std::vector<unsigned char> bf16 = Filled(DType::kBf16, 0, 1000, 9, -3);
  const std::vector<unsigned char> fp16 = Filled(DType::kF16, 0, 1000, 9, -3);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(LoadElement(DType::kBf16, bf16.data(), i), LoadElement(DType::kF16, fp16.data(), i));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RandomValuesTest,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF16));

}  // namespace
}  // namespace tokline
