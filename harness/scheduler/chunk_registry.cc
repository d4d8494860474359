// Implements the tree of chunks: lookup by a hash chain, reference counts, pins, and the list of
// idle chunks in the order of their last use.
#include "harness/scheduler/chunk_registry.h"

#include <algorithm>

#include "kernels/common/error.h"

namespace tokline {
namespace {

// The finalizer of SplitMix64: every bit of the input affects every bit of the output.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

ChunkRegistry::ChunkRegistry(PagePool& pool, const Options& options)
    : pool_(pool), options_(options), split_(PagesOfSize(options.page_size)) {}

uint64_t ChunkRegistry::Begin(ChunkId parent) const {
  return parent == kRootChunk ? Mix(options_.salt + 1) : Get(parent).key;
}

uint64_t ChunkRegistry::Extend(uint64_t state, int32_t token) {
  return Mix(state + 0x9e3779b97f4a7c15ull + static_cast<uint32_t>(token));
}

// The length distinguishes one chunk from two chunks that hold the same tokens together.
uint64_t ChunkRegistry::End(uint64_t state, int64_t length) const {
  return Mix(state ^ static_cast<uint64_t>(length)) & options_.hash_mask;
}

const Chunk& ChunkRegistry::Get(ChunkId id) const {
  Require(IsLive(id), "there is no chunk ", id);
  return chunks_[static_cast<size_t>(id)];
}

const std::vector<Chunk::Children>& ChunkRegistry::ChildrenOf(ChunkId parent) const {
  return parent == kRootChunk ? first_chunks_ : Get(parent).children;
}

std::vector<Chunk::Children>& ChunkRegistry::ChildrenOf(ChunkId parent) {
  return parent == kRootChunk ? first_chunks_ : At(parent).children;
}

void ChunkRegistry::CountChild(ChunkId parent, int32_t length, int32_t change) {
  std::vector<Chunk::Children>& children = ChildrenOf(parent);
  auto at = std::ranges::lower_bound(children, length, {}, &Chunk::Children::length);
  if (at == children.end() || at->length != length) at = children.insert(at, {length, 0});
  at->count += change;
  if (at->count == 0) children.erase(at);
}

ChunkId ChunkRegistry::Find(ChunkId parent, uint64_t key, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const Chunk& chunk = chunks_[static_cast<size_t>(it->second)];
    if (chunk.parent == parent && std::ranges::equal(chunk.tokens, tokens)) return it->second;
  }
  return kRootChunk;
}

ChunkId ChunkRegistry::Find(ChunkId parent, std::span<const int32_t> tokens) const {
  if (ChildrenOf(parent).empty()) return kRootChunk;
  uint64_t state = Begin(parent);
  for (const int32_t token : tokens) state = Extend(state, token);
  return Find(parent, End(state, static_cast<int64_t>(tokens.size())), tokens);
}

// A path of matching chunks.
struct ChunkRegistry::Path {
  ChunkId last = kRootChunk;
  size_t chunks = 0;    // their number
  int32_t partial = 0;  // number of those that end within a page
  int64_t tokens = 0;
};

struct ChunkRegistry::Search {
  std::span<const int32_t> tokens;
  int32_t max_partial = 0;
  std::vector<Path> open = {};  // not visited yet; the last one is the next
};

// Opens the paths that go on from this one by a chunk, such that the shortest is the next.
void ChunkRegistry::Extend(Search& search, const Path& path) const {
  const auto left = search.tokens.subspan(static_cast<size_t>(path.tokens));
  const auto first = std::ssize(search.open);
  uint64_t state = Begin(path.last);
  size_t hashed = 0;
  for (const Chunk::Children& children : ChildrenOf(path.last)) {
    const auto length = static_cast<size_t>(children.length);
    if (length > left.size()) break;
    for (; hashed < length; ++hashed) state = Extend(state, left[hashed]);
    const int32_t partial_now = path.partial + (split_.Fill(children.length) ? 0 : 1);
    if (partial_now > search.max_partial) continue;
    const ChunkId child = Find(path.last, End(state, children.length), left.first(length));
    if (child == kRootChunk) continue;
    search.open.push_back({.last = child,
                           .chunks = path.chunks + 1,
                           .partial = partial_now,
                           .tokens = path.tokens + children.length});
  }
  std::reverse(search.open.begin() + first, search.open.end());
}

// Chunks form a tree, so no chunk is visited twice. A path may have as many chunks as the cache has
// pages, so the search does not recurse, and copies a path only where it turns back.
int64_t ChunkRegistry::Match(std::span<const int32_t> tokens, int32_t max_partial,
                             std::vector<ChunkId>& chunks) const {
  chunks.clear();
  int64_t matched = 0;
  std::vector<ChunkId> ids;  // of the path that is visited
  Search search{.tokens = tokens, .max_partial = max_partial};
  for (Path path;;) {
    const size_t open = search.open.size();
    Extend(search, path);
    if (search.open.size() == open && path.tokens > matched) {
      matched = path.tokens;
      chunks = ids;
    }
    if (search.open.empty()) return matched;
    path = search.open.back();
    search.open.pop_back();
    ids.resize(path.chunks - 1);
    ids.push_back(path.last);
  }
}

ChunkId ChunkRegistry::Seal(ChunkId parent, std::span<const int32_t> tokens,
                            std::span<const int32_t> pages) {
  const auto length = static_cast<int64_t>(tokens.size());
  Require(length >= 1 && static_cast<int64_t>(pages.size()) == split_.PagesFor(length),
          "a chunk of ", length, " tokens on ", pages.size(), " pages of ", options_.page_size);
  Require(parent == kRootChunk || Users(parent) > 0, "chunk ", parent, " is not in use");
  uint64_t state = Begin(parent);
  for (const int32_t token : tokens) state = Extend(state, token);
  const uint64_t key = End(state, length);
  if (const ChunkId found = Find(parent, key, tokens); found != kRootChunk) {
    Acquire(found);
    pool_.Release(pages);
    return found;
  }
  pool_.Share(pages);  // the registry's reference, in addition to the caller's
  ChunkId id = EndId();
  if (free_ids_.empty()) {
    chunks_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  At(id) = {.parent = parent,
            .key = key,
            .tokens = {tokens.begin(), tokens.end()},
            .pages = {pages.begin(), pages.end()},
            .number = made_++};
  by_key_.emplace(key, id);
  CountChild(parent, static_cast<int32_t>(length), 1);
  return id;
}

void ChunkRegistry::Acquire(ChunkId id) {
  pool_.Share(Get(id).pages);
  UpdateIdle(id);
}

void ChunkRegistry::Release(ChunkId id) {
  Require(Users(id) > 0, "chunk ", id, " is released more often than it is used");
  pool_.Release(Get(id).pages);
  UpdateIdle(id);
}

void ChunkRegistry::Pin(ChunkId id) {
  for (; id != kRootChunk; id = Get(id).parent) {
    if (Get(id).pins == 0) pinned_pages_ += static_cast<int32_t>(Get(id).pages.size());
    ++At(id).pins;
    UpdateIdle(id);
  }
}

void ChunkRegistry::Unpin(ChunkId id) {
  for (; id != kRootChunk; id = Get(id).parent) {
    Require(Get(id).pins > 0, "chunk ", id, " is not pinned");
    if (--At(id).pins == 0) pinned_pages_ -= static_cast<int32_t>(Get(id).pages.size());
    UpdateIdle(id);
  }
}

int32_t ChunkRegistry::PagesToPin(ChunkId id) const {
  int32_t pages = 0;
  for (; id != kRootChunk; id = Get(id).parent) {
    if (Get(id).pins == 0) pages += static_cast<int32_t>(Get(id).pages.size());
  }
  return pages;
}

void ChunkRegistry::UpdateIdle(ChunkId id) { SetIdle(id, Users(id) == 0 && Get(id).pins == 0); }

void ChunkRegistry::SetIdle(ChunkId id, bool idle) {
  Chunk& chunk = At(id);
  if (chunk.idle == idle) return;
  chunk.idle = idle;
  const auto pages = static_cast<int32_t>(chunk.pages.size());
  idle_pages_ += idle ? pages : -pages;
  if (idle) {
    chunk.older = newest_;
    chunk.newer = kRootChunk;
    (newest_ == kRootChunk ? oldest_ : At(newest_).newer) = id;
    newest_ = id;
  } else {
    (chunk.older == kRootChunk ? oldest_ : At(chunk.older).newer) = chunk.newer;
    (chunk.newer == kRootChunk ? newest_ : At(chunk.newer).older) = chunk.older;
  }
}

// Every user or pin of a chunk also holds its parent until after the chunk. The least recently
// used idle chunk therefore has no children.
void ChunkRegistry::EvictOldest() {
  const ChunkId id = oldest_;
  Require(id != kRootChunk, "no chunk is idle");
  SetIdle(id, false);
  Chunk& chunk = At(id);
  CountChild(chunk.parent, static_cast<int32_t>(chunk.tokens.size()), -1);
  auto at = by_key_.find(chunk.key);
  while (at->second != id) ++at;
  by_key_.erase(at);
  pool_.Release(chunk.pages);
  chunk = {};
  free_ids_.push_back(id);
  ++evictions_;
}

}  // namespace tokline
