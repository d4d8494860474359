// Hands out the pages of the KV cache. One numbering serves all layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tokline {

// A free list with reference counts: a page that several owners hold returns to the list when the
// last of them releases it. Fresh pages are handed out in ascending order, freed pages in LIFO
// order.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  int32_t NumPages() const { return static_cast<int32_t>(references_.size()); }
  int32_t NumFree() const { return static_cast<int32_t>(free_.size()); }
  int32_t References(int32_t page) const;

  // Appends `count` pages, each with one reference, to `pages`. If fewer are free, allocates none
  // and throws InvalidArgument with the numbers of needed and free pages.
  void Allocate(int32_t count, std::vector<int32_t>& pages);
  // Adds a reference to each page. Throws InvalidArgument for a page that is not in use.
  void Share(std::span<const int32_t> pages);
  // Drops a reference to each page. Throws InvalidArgument for a page that is not in use.
  void Release(std::span<const int32_t> pages);

 private:
  void RequireInUse(std::span<const int32_t> pages) const;

  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // a stack
};

}  // namespace tokline
