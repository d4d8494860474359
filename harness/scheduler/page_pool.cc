#include "harness/scheduler/page_pool.h"

#include "kernels/common/error.h"

namespace tokline {

PagePool::PagePool(int32_t num_pages) {
  Require(num_pages >= 0, "a page pool of ", num_pages, " pages; it must be >= 0");
  references_.assign(static_cast<size_t>(num_pages), 0);
  free_.reserve(static_cast<size_t>(num_pages));
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PagePool::References(int32_t page) const {
  Require(page >= 0 && page < NumPages(), "page ", page, "; the pool has pages 0 to ",
          NumPages() - 1);
  return references_[static_cast<size_t>(page)];
}

void PagePool::Allocate(int32_t count, std::vector<int32_t>& pages) {
  Require(count >= 0 && count <= NumFree(), "the KV cache is full: ", count, " pages are needed, ",
          NumFree(), " of ", NumPages(), " are free");
  for (int32_t i = 0; i < count; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(page)] = 1;
    pages.push_back(page);
  }
}

void PagePool::Share(std::span<const int32_t> pages) {
  RequireInUse(pages);
  for (const int32_t page : pages) ++references_[static_cast<size_t>(page)];
}

void PagePool::Release(std::span<const int32_t> pages) {
  RequireInUse(pages);
  for (const int32_t page : pages) {
    int32_t& references = references_[static_cast<size_t>(page)];
    Require(references > 0, "page ", page, " is released more often than it is held");
    if (--references == 0) free_.push_back(page);
  }
}

void PagePool::RequireInUse(std::span<const int32_t> pages) const {
  for (const int32_t page : pages) {
    Require(References(page) > 0, "page ", page, " is not in use");
  }
}

}  // namespace tokline
