// Tests lookup, sharing, pinning and eviction of chunks.
#include "harness/scheduler/chunk_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kPageSize = 4;

class ChunkRegistryTest : public ::testing::Test {
 protected:
  // Seals tokens after `parent` on new pages. The test becomes a user of the chunk.
  ChunkId Seal(ChunkId parent, const std::vector<int32_t>& tokens) {
    std::vector<int32_t> pages;
    pool_.Allocate(static_cast<int32_t>((tokens.size() + kPageSize - 1) / kPageSize), pages);
    return registry_.Seal(parent, tokens, pages);
  }
  std::vector<ChunkId> Match(const std::vector<int32_t>& tokens, int32_t max_partial = 9) {
    std::vector<ChunkId> chunks;
    matched_ = registry_.Match(tokens, max_partial, chunks);
    return chunks;
  }

  PagePool pool_{40};
  ChunkRegistry registry_{pool_, {.page_size = kPageSize, .salt = 5}};
  int64_t matched_ = 0;
};

TEST_F(ChunkRegistryTest, MatchGivesTheLongestExactPrefix) {
  const ChunkId first = Seal(kRootChunk, {1, 2, 3, 4});
  const ChunkId second = Seal(first, {5, 6, 7, 8});
  EXPECT_THAT(Match({1, 2, 3, 4, 5, 6, 7, 8, 9}), ElementsAre(first, second));
  EXPECT_EQ(matched_, 8);
  EXPECT_THAT(Match({1, 2, 3, 4, 5, 6, 7, 9}), ElementsAre(first));
  EXPECT_THAT(Match({1, 2, 3}), IsEmpty());
  EXPECT_EQ(matched_, 0);
  // The same tokens after another prefix have other K and V.
  EXPECT_THAT(Match({5, 6, 7, 8}), IsEmpty());
}

TEST_F(ChunkRegistryTest, MatchWeighsChunksThatEndWithinAPageAgainstWholeOnes) {
  const ChunkId whole = Seal(kRootChunk, {1, 2, 3, 4});
  const ChunkId part = Seal(kRootChunk, {1, 2, 3});
  const ChunkId behind = Seal(part, {4, 5, 6, 7});
  EXPECT_THAT(Match({1, 2, 3, 4, 5, 6, 7}), ElementsAre(part, behind));
  EXPECT_THAT(Match({1, 2, 3, 4, 5, 6, 7}, 0), ElementsAre(whole));
  EXPECT_THAT(Match({1, 2, 3, 4, 5}), ElementsAre(whole));
  EXPECT_THAT(Match({1, 2, 3, 9}), ElementsAre(part));
}

// A chunk more must not take more of the stack.
TEST_F(ChunkRegistryTest, PrefixOfManyChunksIsFound) {
  constexpr int32_t kChunks = 100'000;
  PagePool pool(kChunks + 1);
  ChunkRegistry registry(pool, {.page_size = kPageSize});
  std::vector<int32_t> text;
  std::vector<ChunkId> sealed;
  for (int32_t i = 0; i < kChunks; ++i) {
    std::vector<int32_t> page;
    pool.Allocate(1, page);
    const std::vector<int32_t> tokens(kPageSize, i % 7);
    sealed.push_back(registry.Seal(sealed.empty() ? kRootChunk : sealed.back(), tokens, page));
    text.insert(text.end(), tokens.begin(), tokens.end());
  }
  std::vector<int32_t> page;
  pool.Allocate(1, page);
  registry.Seal(sealed[0], std::span(text).subspan(kPageSize, 2), page);  // a branch that ends soon
  std::vector<ChunkId> found;
  EXPECT_EQ(registry.Match(text, 1, found), kChunks * kPageSize);
  EXPECT_EQ(found, sealed);
}

TEST_F(ChunkRegistryTest, SecondChunkOfTheSameTextIsTheFirst) {
  const ChunkId first = Seal(kRootChunk, {1, 2, 3, 4, 5});
  const int32_t free = pool_.NumFree();
  EXPECT_EQ(Seal(kRootChunk, {1, 2, 3, 4, 5}), first);
  EXPECT_EQ(pool_.NumFree(), free);
  EXPECT_EQ(registry_.Users(first), 2);
}

TEST_F(ChunkRegistryTest, EqualHashesAreNotEqualChunks) {
  ChunkRegistry clashing(pool_, {.page_size = kPageSize, .salt = 5, .hash_mask = 0});
  std::vector<std::vector<int32_t>> texts;
  std::vector<ChunkId> ids;
  for (int32_t i = 0; i < 8; ++i) {
    texts.push_back({i, i + 1, 7, 7});
    std::vector<int32_t> pages;
    pool_.Allocate(1, pages);
    ids.push_back(
        clashing.Seal(i < 4 ? kRootChunk : ids[static_cast<size_t>(i - 4)], texts.back(), pages));
  }
  std::vector<ChunkId> found;
  for (size_t i = 0; i < 4; ++i) {
    std::vector<int32_t> text = texts[i];
    text.insert(text.end(), texts[i + 4].begin(), texts[i + 4].end());
    EXPECT_EQ(clashing.Match(text, 0, found), 8);
    EXPECT_THAT(found, ElementsAre(ids[i], ids[i + 4]));
  }
}

TEST_F(ChunkRegistryTest, KeysDependOnTheSalt) {
  ChunkRegistry other(pool_, {.page_size = kPageSize, .salt = 6});
  std::vector<int32_t> pages;
  pool_.Allocate(1, pages);
  const std::vector<int32_t> text{1, 2, 3, 4};
  const ChunkId there = other.Seal(kRootChunk, text, pages);
  EXPECT_NE(other.Get(there).key, registry_.Get(Seal(kRootChunk, text)).key);
}

TEST_F(ChunkRegistryTest, ChunksInUseOrPinnedAreNotEvicted) {
  const ChunkId first = Seal(kRootChunk, {1, 2, 3, 4});
  const ChunkId second = Seal(first, {5, 6, 7, 8, 9});
  EXPECT_THROW(registry_.EvictOldest(), InvalidArgument);
  registry_.Pin(first);
  registry_.Release(second);
  registry_.Release(first);
  EXPECT_EQ(registry_.PinnedPages(), 1);
  EXPECT_EQ(registry_.IdlePages(), 2);
  registry_.EvictOldest();
  EXPECT_FALSE(registry_.IsLive(second));
  EXPECT_THROW(registry_.EvictOldest(), InvalidArgument);
  registry_.Unpin(first);
  registry_.EvictOldest();
  EXPECT_EQ(registry_.NumChunks(), 0);
  EXPECT_EQ(pool_.NumFree(), pool_.NumPages());
}

TEST_F(ChunkRegistryTest, MisuseIsRefused) {
  const ChunkId chunk = Seal(kRootChunk, {1, 2});
  EXPECT_THROW(Seal(chunk, {}), InvalidArgument);
  EXPECT_THROW(registry_.Unpin(chunk), InvalidArgument);
  registry_.Release(chunk);
  EXPECT_THROW(registry_.Release(chunk), InvalidArgument);
  EXPECT_THROW(Seal(chunk, {3}), InvalidArgument);  // its parent is not in use
  registry_.EvictOldest();
  EXPECT_THROW(registry_.Acquire(chunk), InvalidArgument);
  EXPECT_THROW(registry_.Get(kRootChunk), InvalidArgument);
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5}, page{0};
  EXPECT_THROW(registry_.Seal(kRootChunk, tokens, page), InvalidArgument);
}

// Uses, releases and pins random paths of up to four chunks, and compares the order of eviction
// with a list.
TEST_F(ChunkRegistryTest, RandomRunEvictsInTheOrderOfLastUse) {
  std::mt19937 rng(17);
  std::vector<std::vector<ChunkId>> users;
  std::vector<ChunkId> pinned;
  std::deque<ChunkId> idle;  // oldest first
  int64_t evictions = 0;
  const auto drop_idle = [&](ChunkId id) {
    const auto at = std::ranges::find(idle, id);
    if (at != idle.end()) idle.erase(at);
  };
  const auto add_if_idle = [&](ChunkId id) {
    if (registry_.Users(id) == 0 && registry_.Get(id).pins == 0) idle.push_back(id);
  };
  for (int round = 0; round < 30000; ++round) {
    const uint32_t choice = rng() % 10;
    if (choice < 5 && users.size() < 6) {
      std::vector<ChunkId> path;
      for (uint32_t depth = 1 + rng() % 4; depth > 0; --depth) {
        const ChunkId parent = path.empty() ? kRootChunk : path.back();
        const std::vector<int32_t> tokens(1 + rng() % 7, static_cast<int32_t>(rng() % 2));
        ChunkId id = registry_.Find(parent, tokens);
        if (id != kRootChunk) {
          registry_.Acquire(id);
          drop_idle(id);
        } else {
          const int32_t pages = static_cast<int32_t>(tokens.size() + kPageSize - 1) / kPageSize;
          while (pool_.NumFree() < pages && !idle.empty()) {
            registry_.EvictOldest();
            ASSERT_FALSE(registry_.IsLive(idle.front()));
            idle.pop_front();
            ++evictions;
          }
          if (pool_.NumFree() < pages) break;
          id = Seal(parent, tokens);
        }
        path.push_back(id);
      }
      users.push_back(path);
    } else if (choice < 8 && !users.empty()) {
      const size_t which = rng() % users.size();
      for (size_t i = users[which].size(); i-- > 0;) {
        registry_.Release(users[which][i]);
        add_if_idle(users[which][i]);
      }
      users.erase(users.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (choice == 8 && pinned.size() < 2 && !users.empty() && !users.back().empty()) {
      pinned.push_back(users.back().back());
      registry_.Pin(pinned.back());
    } else if (choice == 9 && !pinned.empty()) {
      ChunkId id = pinned.back();
      pinned.pop_back();
      registry_.Unpin(id);
      for (; id != kRootChunk; id = registry_.Get(id).parent) add_if_idle(id);
    }
    std::vector<ChunkId> listed;
    for (ChunkId id = registry_.OldestIdle(); id != kRootChunk; id = registry_.Get(id).newer) {
      listed.push_back(id);
    }
    ASSERT_EQ(listed, std::vector<ChunkId>(idle.begin(), idle.end())) << "round " << round;
  }
  EXPECT_GT(evictions, 300);
}

}  // namespace
}  // namespace tokline
