// The chunks of the KV cache that outlive their sequences: which chunks exist, how many sequences
// use each of them, and which is evicted first when pages run short.
//
// A chunk is a run of tokens with the pages that hold their K and V. These were computed after one
// exact prefix: the chunks from the root to its parent. A chunk never changes, so sequences share
// it without a copy. Lookups use a hash chain over the prefix and then compare the parent and the
// tokens, so a hash collision cannot match the wrong chunk. A user of a chunk also uses its parent.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "harness/scheduler/page_pool.h"
#include "kernels/common/paged_kv_layout.h"

namespace tokline {

using ChunkId = int32_t;
inline constexpr ChunkId kRootChunk = -1;  // before the first token

struct Chunk {
  ChunkId parent = kRootChunk;
  uint64_t key = 0;                  // hash of the prefix up to the end of this chunk
  std::vector<int32_t> tokens = {};  // empty if the id is free
  std::vector<int32_t> pages = {};   // the registry and each user hold one reference to each page
  int32_t pins = 0;
  int64_t number = 0;  // number of chunks made before this one
  // Counts children by their length in tokens, ascending: the lengths that a lookup has to try.
  struct Children {
    int32_t length;
    int32_t count;
  };
  std::vector<Children> children = {};
  // A chunk that is neither used nor pinned is idle. `older` and `newer` link the idle chunks in
  // the order of their last use.
  bool idle = false;
  ChunkId older = kRootChunk;
  ChunkId newer = kRootChunk;
};

class ChunkRegistry {
 public:
  struct Options {
    int32_t page_size = 256;     // a power of two
    uint64_t salt = 0;           // identifies everything else that K and V depend on
    uint64_t hash_mask = ~0ull;  // tests clear bits to provoke collisions
  };

  // Keeps a reference to the pool.
  ChunkRegistry(PagePool& pool, const Options& options);
  ChunkRegistry(const ChunkRegistry&) = delete;
  ChunkRegistry& operator=(const ChunkRegistry&) = delete;

  // Sets `chunks` to the chunks that hold the longest cached prefix of `tokens`, in order, and
  // returns the length of that prefix. At most `max_partial` of them end within a page. The caller
  // does not become a user of the chunks.
  int64_t Match(std::span<const int32_t> tokens, int32_t max_partial,
                std::vector<ChunkId>& chunks) const;
  // Returns the child of `parent` with exactly these tokens, or kRootChunk if there is none.
  ChunkId Find(ChunkId parent, std::span<const int32_t> tokens) const;

  // Makes a chunk of the tokens that follow `parent`, unless it exists already, and makes the
  // caller a user of it. The caller must use `parent`. The caller's references to the pages become
  // its use of a new chunk; if the chunk exists, they are released. There must be exactly as many
  // pages as the tokens need.
  ChunkId Seal(ChunkId parent, std::span<const int32_t> tokens, std::span<const int32_t> pages);

  // Acquire begins the use of a chunk whose parent the caller uses. Release ends it and must come
  // before the release of the parent.
  void Acquire(ChunkId id);
  void Release(ChunkId id);

  // A pinned chunk and all of its prefix stay cached until Unpin was called as often as Pin.
  void Pin(ChunkId id);
  void Unpin(ChunkId id);
  // Returns the number of pages that Pin would newly pin.
  int32_t PagesToPin(ChunkId id) const;

  // Releases the pages of the least recently used idle chunk. There must be an idle chunk.
  void EvictOldest();

  const Chunk& Get(ChunkId id) const;
  int32_t Users(ChunkId id) const { return pool_.References(Get(id).pages[0]) - 1; }
  int32_t NumChunks() const { return static_cast<int32_t>(by_key_.size()); }
  // All ids are below EndId(). Ids below it may be free.
  int32_t EndId() const { return static_cast<int32_t>(chunks_.size()); }
  bool IsLive(ChunkId id) const {
    return id >= 0 && id < EndId() && !chunks_[static_cast<size_t>(id)].tokens.empty();
  }
  ChunkId OldestIdle() const { return oldest_; }
  int32_t IdlePages() const { return idle_pages_; }      // freed if all idle chunks are evicted
  int32_t PinnedPages() const { return pinned_pages_; }  // counts each page once
  int64_t Evictions() const { return evictions_; }
  int64_t Made() const { return made_; }  // number of chunks made so far

 private:
  // The steps of the hash chain, which takes one token at a time.
  uint64_t Begin(ChunkId parent) const;
  static uint64_t Extend(uint64_t state, int32_t token);
  uint64_t End(uint64_t state, int64_t length) const;

  ChunkId Find(ChunkId parent, uint64_t key, std::span<const int32_t> tokens) const;
  std::vector<Chunk::Children>& ChildrenOf(ChunkId parent);
  const std::vector<Chunk::Children>& ChildrenOf(ChunkId parent) const;
  void CountChild(ChunkId parent, int32_t length, int32_t change);
  void SetIdle(ChunkId id, bool idle);
  void UpdateIdle(ChunkId id);
  Chunk& At(ChunkId id) { return chunks_[static_cast<size_t>(id)]; }

  struct Path;
  struct Search;
  void Extend(Search& search, const Path& path) const;

  PagePool& pool_;
  Options options_;
  PageSplit split_;
  std::vector<Chunk> chunks_;
  std::vector<ChunkId> free_ids_;
  std::unordered_multimap<uint64_t, ChunkId> by_key_;
  std::vector<Chunk::Children> first_chunks_;  // children of the root
  ChunkId oldest_ = kRootChunk;
  ChunkId newest_ = kRootChunk;
  int32_t idle_pages_ = 0;
  int32_t pinned_pages_ = 0;
  int64_t evictions_ = 0;
  int64_t made_ = 0;
};

}  // namespace tokline
