#include "harness/platform/process_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace tokline {
namespace {

TEST(ProcessMemoryTest, SeesPagesWhenTheyAreTouched) {
  constexpr int64_t kBytes = 64 << 20;
  const ProcessMemory before = ReadProcessMemory();
  auto* block = static_cast<char*>(std::malloc(kBytes));
  ASSERT_NE(block, nullptr);
  std::memset(block, 1, kBytes);
  const ProcessMemory with = ReadProcessMemory();
  EXPECT_EQ(block[kBytes / 2], 1);
  std::free(block);
  const ProcessMemory after = ReadProcessMemory();
  constexpr int64_t kSlack = 4 << 20;
  EXPECT_GE(with.resident - before.resident, kBytes - kSlack);
  EXPECT_GE(with.anonymous - before.anonymous, kBytes - kSlack);
  EXPECT_GE(with.peak_resident, with.resident - kSlack);
#ifndef __SANITIZE_ADDRESS__  // ASan's allocator is not glibc's and keeps freed memory
  EXPECT_GE(with.heap_in_use - before.heap_in_use, kBytes);
  EXPECT_LE(after.heap_in_use, with.heap_in_use - kBytes);
  EXPECT_LE(after.resident, with.resident - kBytes + kSlack);
#endif
}

TEST(ProcessMemoryTest, AvailableIsMoreThanNothing) { EXPECT_GT(AvailableHostBytes(), 1 << 20); }

}  // namespace
}  // namespace tokline
