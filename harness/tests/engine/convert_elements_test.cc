// Conversions of every pair of dtypes, from any alignment and with strides; what f16 cannot hold is
// refused.
#include "harness/engine/convert_elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "harness/tests/message_of.h"
#include "reference/elements.h"

namespace tokline {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

TEST(ConvertElementsTest, EveryPairRoundsToNearestFromAnyAlignment) {
  // Values that are exact in all three types, tie to even in bf16, are nearly the largest half, and
  // are close to the smallest normal half.
  const std::vector<double> values{0, -1, 96.5, 1 + 0x1p-8, 1 + 3 * 0x1p-8, 65280, -0x1p-14, 3.1};
  const auto count = static_cast<int64_t>(values.size());
  for (const DType from : kDTypes) {
    std::vector<char> source(static_cast<size_t>(count * SizeOf(from)) + 1);
    std::vector<char> aligned(source.size());
    for (int64_t i = 0; i < count; ++i) {
      StoreElement(from, aligned.data(), i, values[static_cast<size_t>(i)]);
    }
    std::memcpy(source.data() + 1, aligned.data(), source.size() - 1);
    for (const DType to : kDTypes) {
      std::vector<char> out(static_cast<size_t>(count * SizeOf(to)));
      ConvertElements(from, source.data() + 1, to, out.data(), count);
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(LoadElement(to, out.data(), i), RoundTo(to, LoadElement(from, aligned.data(), i)))
            << Name(from) << " to " << Name(to) << ", element " << i;
      }
    }
  }
}

TEST(ConvertElementsTest, FiniteNumbersThatF16CannotHoldAreRefused) {
  const auto convert = [](std::vector<float> values) {
    std::vector<char> out(2 * values.size());
    ConvertElements(DType::kF32, values.data(), DType::kF16, out.data(), std::ssize(values));
    return LoadElement(DType::kF16, out.data(), 0);
  };
  EXPECT_EQ(convert({65519.9f, 1}), 65504);  // rounds to the largest there is
  EXPECT_EQ(convert({-INFINITY, NAN}), -INFINITY);
  EXPECT_EQ(testing::MessageOf([&] {
              convert({1, -65520});
            }),
            "a weight of magnitude 65520 does not fit f16, whose largest number is 65504; bf16 and "
            "f32 hold it");
}

// Covers dense matrices, every other row, and transposes with more rows than a block.
TEST(ConvertMatrixTest, StridedMatricesBecomeDense) {
  constexpr int64_t kRows = 70, kColumns = 5;
  std::vector<float> source(kRows * kColumns * 2);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i) * 0.37f;
  struct Strides {
    int64_t row, column;
  };
  for (const Strides& strides :
       {Strides{kColumns, 1}, Strides{2 * kColumns, 1}, Strides{1, kRows}, Strides{1, 2 * kRows}}) {
    for (const DType to : kDTypes) {
      std::vector<char> out(static_cast<size_t>(kRows * kColumns * SizeOf(to)));
      ConvertMatrix(DType::kF32, source.data(), strides.row, strides.column, to, out.data(), kRows,
                    kColumns);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t column = 0; column < kColumns; ++column) {
          const auto at = static_cast<size_t>(row * strides.row + column * strides.column);
          EXPECT_EQ(LoadElement(to, out.data(), row * kColumns + column), RoundTo(to, source[at]))
              << "strides " << strides.row << ", " << strides.column << ", row " << row
              << ", column " << column;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tokline
