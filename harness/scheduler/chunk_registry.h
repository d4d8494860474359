// Chunks of the KV cache that outlive their sequence: which are there, who uses them, which goes
// first when pages run short.
//
// A chunk is a run of tokens with the pages that hold their K and V, computed after one exact
// prefix: that of its parent chunk, up to the root. It never changes, so whoever shares one needs
// no copy. Chunks are found by a hash chain of their prefix, and by comparing parent and tokens, so
// that equal hashes are no equal chunks. Who uses a chunk uses its parent too.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "harness/scheduler/page_pool.h"

namespace tokline {

using ChunkId = int32_t;
inline constexpr ChunkId kRootChunk = -1;  // before the first token

struct Chunk {
  ChunkId parent = kRootChunk;
  uint64_t key = 0;                  // of the prefix up to the end of this chunk
  std::vector<int32_t> tokens = {};  // empty: the id is free
  std::vector<int32_t> pages = {};   // of each the registry holds one reference, each user another
  int32_t pins = 0;
  int64_t number = 0;  // of chunks made before it
  // Children by their length in tokens, ascending: what lengths a lookup has to try.
  struct Children {
    int32_t length;
    int32_t count;
  };
  std::vector<Children> children = {};
  // Of the list of chunks that nobody uses or has pinned, oldest use first.
  bool idle = false;
  ChunkId older = kRootChunk;
  ChunkId newer = kRootChunk;
};

class ChunkRegistry {
 public:
  struct Options {
    int32_t page_size = 256;
    uint64_t salt = 0;           // of everything that K and V depend on besides the tokens
    uint64_t hash_mask = ~0ull;  // to test what happens when hashes are equal
  };

  // Borrows the pool.
  ChunkRegistry(PagePool& pool, const Options& options);
  ChunkRegistry(const ChunkRegistry&) = delete;
  ChunkRegistry& operator=(const ChunkRegistry&) = delete;

  // The chunks that hold the longest possible prefix of `tokens`, in order, into `chunks`; returns
  // its length. At most `max_partial` of them end within a page. Nobody's use begins.
  int64_t Match(std::span<const int32_t> tokens, int32_t max_partial,
                std::vector<ChunkId>& chunks) const;
  // The child of `parent` with exactly these tokens, or kRootChunk.
  ChunkId Find(ChunkId parent, std::span<const int32_t> tokens) const;

  // A new chunk of the tokens that come after `parent`, which the caller uses, unless there is one.
  // The caller's reference to the pages becomes its use of the chunk; where the chunk existed, the
  // caller uses that one, and its pages are released. The pages must be just enough.
  ChunkId Seal(ChunkId parent, std::span<const int32_t> tokens, std::span<const int32_t> pages);

  // A use begins, of a chunk whose parent the caller uses, and ends, before that of the parent.
  void Acquire(ChunkId id);
  void Release(ChunkId id);

  // A pinned chunk and all before it stay until they are unpinned as often.
  void Pin(ChunkId id);
  void Unpin(ChunkId id);
  // Pages that Pin would add to the pinned ones.
  int32_t PagesToPin(ChunkId id) const;

  // Releases the pages of the chunk whose last use is longest ago. There must be an idle one.
  void EvictOldest();

  const Chunk& Get(ChunkId id) const;
  int32_t Users(ChunkId id) const { return pool_.References(Get(id).pages[0]) - 1; }
  int32_t NumChunks() const { return static_cast<int32_t>(by_key_.size()); }
  // Ids are below this; some of them may be free.
  int32_t EndId() const { return static_cast<int32_t>(chunks_.size()); }
  bool IsLive(ChunkId id) const {
    return id >= 0 && id < EndId() && !chunks_[static_cast<size_t>(id)].tokens.empty();
  }
  ChunkId OldestIdle() const { return oldest_; }
  int32_t IdlePages() const { return idle_pages_; }      // that evictions would free
  int32_t PinnedPages() const { return pinned_pages_; }  // each counted once
  int64_t Evictions() const { return evictions_; }
  int64_t Made() const { return made_; }  // chunks so far

 private:
  // The hash chain, token by token.
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

  struct Search;
  void Extend(Search& search, ChunkId parent, int64_t begin, int32_t partial) const;

  PagePool& pool_;
  Options options_;
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
