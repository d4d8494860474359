// Hands out the pages of the KV cache. One numbering serves all layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tokline {

// A free list with reference counts: a page that several owners hold returns to the list when the
// last one lets go. Pages are handed out lowest first at the start, last freed first later.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  int32_t NumPages() const { return static_cast<int32_t>(references_.size()); }
  int32_t NumFree() const { return static_cast<int32_t>(free_.size()); }
  int32_t References(int32_t page) const;

  // Appends `count` pages, each with one reference, to `pages`. All or nothing: throws
  // InvalidArgument with the needed and the free number if there are fewer.
  void Allocate(int32_t count, std::vector<int32_t>& pages);
  // One more reference to pages that are in use.
  void Share(std::span<const int32_t> pages);
  // One reference less each. Throws InvalidArgument for a page that is not in use.
  void Release(std::span<const int32_t> pages);

 private:
  void RequireInUse(std::span<const int32_t> pages) const;

  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // a stack
};

}  // namespace tokline
