// Tests the allocation and the reference counts of pages.
#include "harness/scheduler/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PagePoolTest, AllocationIsAllOrNothingAndSaysWhatIsNeededAndFree) {
  PagePool pool(4);
  std::vector<int32_t> pages;
  pool.Allocate(3, pages);
  EXPECT_THAT(pages, ElementsAre(0, 1, 2));
  EXPECT_THAT(
      [&] { pool.Allocate(2, pages); },
      ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("2 pages are needed, 1 of 4 are free")));
  EXPECT_EQ(pages.size(), 3u);
  EXPECT_EQ(pool.NumFree(), 1);
}

TEST(PagePoolTest, SharedPageIsFreeWhenItsLastHolderLetsGo) {
  PagePool pool(2);
  std::vector<int32_t> pages;
  pool.Allocate(1, pages);
  pool.Share(pages);
  pool.Release(pages);
  EXPECT_EQ(pool.NumFree(), 1);
  EXPECT_EQ(pool.References(pages[0]), 1);
  pool.Release(pages);
  EXPECT_EQ(pool.NumFree(), 2);
}

TEST(PagePoolTest, DoubleFreeAndUnknownPagesAreRefused) {
  PagePool pool(2);
  std::vector<int32_t> pages;
  pool.Allocate(1, pages);
  pool.Release(pages);
  EXPECT_THROW(pool.Release(pages), InvalidArgument);
  EXPECT_THROW(pool.Share(pages), InvalidArgument);
  const std::vector<int32_t> outside{2}, negative{-1};
  EXPECT_THROW(pool.Release(outside), InvalidArgument);
  EXPECT_THROW(pool.Share(negative), InvalidArgument);
  pool.Allocate(1, pages);
  const std::vector<int32_t> twice{pages.back(), pages.back()};
  EXPECT_THROW(pool.Release(twice), InvalidArgument);
}

TEST(PagePoolTest, RandomRunNeverHandsOutAPageInUseAndLosesNone) {
  constexpr int32_t kPages = 37;
  PagePool pool(kPages);
  std::mt19937 rng(5);
  std::vector<std::vector<int32_t>> owners;
  std::map<int32_t, int32_t> held;  // references by page
  for (int round = 0; round < 20000; ++round) {
    const uint32_t choice = rng() % 4;
    if (choice <= 1) {
      const auto count = static_cast<int32_t>(rng() % 6);
      if (count > pool.NumFree()) {
        std::vector<int32_t> none;
        ASSERT_THROW(pool.Allocate(count, none), InvalidArgument);
        ASSERT_TRUE(none.empty());
        continue;
      }
      std::vector<int32_t> pages;
      pool.Allocate(count, pages);
      for (const int32_t page : pages) {
        ASSERT_EQ(held[page], 0) << "page " << page << " was in use";
        ++held[page];
      }
      owners.push_back(pages);
    } else if (!owners.empty()) {
      const size_t which = rng() % owners.size();
      if (choice == 2) {
        pool.Share(owners[which]);
        for (const int32_t page : owners[which]) ++held[page];
        owners.push_back(owners[which]);
      } else {
        pool.Release(owners[which]);
        for (const int32_t page : owners[which]) --held[page];
        owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    int32_t in_use = 0;
    for (const auto& [page, references] : held) {
      ASSERT_EQ(pool.References(page), references);
      in_use += references > 0;
    }
    ASSERT_EQ(pool.NumFree(), kPages - in_use);
  }
}

}  // namespace
}  // namespace tokline
