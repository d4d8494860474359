// The main of every test program. Two outcomes that GoogleTest reports as success are not:
//  - every test was skipped (no CUDA device): exits 77, which ctest reports as Skipped;
//  - no test ran, because a filter matched none: exits 1.
#include <cstdio>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

constexpr int kAllSkipped = 77;

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  if (result != 0 || testing::GTEST_FLAG(list_tests)) return result;
  if (tests.test_to_run_count() == 0) {
    std::fprintf(stderr, "no test ran: the filter matches none of %d tests\n",
                 tests.total_test_count());
    return 1;
  }
  return tests.successful_test_count() == 0 ? kAllSkipped : 0;
}
