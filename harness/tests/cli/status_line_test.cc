// Tests how commands format figures.
#include "harness/cli/status_line.h"

#include <gtest/gtest.h>

#include "harness/platform/printable.h"

namespace tokline {
namespace {

TEST(StatusLineTest, BytesAreMebibytesOrLessThanOne) {
  EXPECT_EQ(BytesText(0), "0.0 KiB");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText((1 << 20) - 1), "1,024.0 KiB");
  EXPECT_EQ(BytesText(1 << 20), "1.0 MiB");
  EXPECT_EQ(BytesText((1 << 20) + 52428), "1.0 MiB");
  EXPECT_EQ(BytesText((1 << 20) + 52429), "1.1 MiB");
  EXPECT_EQ(BytesText(int64_t{1234} << 20), "1,234.0 MiB");
  EXPECT_EQ(BytesText(-(3 << 19)), "-1.5 MiB");
  EXPECT_EQ(BytesText(-512), "-0.5 KiB");
}

TEST(StatusLineTest, NumbersAreGroupedByThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
}

}  // namespace
}  // namespace tokline
