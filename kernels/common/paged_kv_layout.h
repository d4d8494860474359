// Page arithmetic and addresses of a paged KV cache. Nothing else computes either.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/common/error.h"

#ifdef __CUDACC__
#define TOKLINE_HOST_DEVICE __host__ __device__
#else
#define TOKLINE_HOST_DEVICE
#endif

namespace tokline {

enum class KvOrder : uint8_t {
  kHnd,  // [num_pages, 2, num_kv_heads, page_size, head_dim]
  kNhd,  // [num_pages, 2, page_size, num_kv_heads, head_dim]
};

// Splits a token's or slot's `position` into the page that holds it and the row within that page,
// and combines these into a slot. Loops keep a PageSplit because it stores the shift, which the
// layout would have to recompute each time.
struct PageSplit {
  int32_t shift, mask;

  template <typename Position>
  TOKLINE_HOST_DEVICE constexpr Position PageOf(Position position) const {
    return position >> shift;
  }
  TOKLINE_HOST_DEVICE constexpr int32_t RowOf(int64_t position) const {
    return static_cast<int32_t>(position) & mask;
  }
  TOKLINE_HOST_DEVICE constexpr int64_t SlotOf(int64_t page, int32_t row) const {
    return page << shift | row;
  }
  // Whether `tokens` tokens leave no room on their last page.
  constexpr bool Fill(int64_t tokens) const { return RowOf(tokens) == 0; }
  // How many tokens `pages` pages hold, and how many pages hold `tokens` tokens.
  constexpr int64_t TokensIn(int64_t pages) const { return pages << shift; }
  constexpr int64_t PagesFor(int64_t tokens) const { return (tokens + mask) >> shift; }
};

inline PageSplit PagesOfSize(int32_t page_size) {
  Require(page_size >= 1 && std::has_single_bit(static_cast<uint32_t>(page_size)), "page_size is ",
          page_size, "; it must be a power of two");
  return {std::countr_zero(static_cast<uint32_t>(page_size)), page_size - 1};
}

// The layout of one layer's pool. Index 0 of the second dimension is K and index 1 is V. A token's
// slot is page * page_size + position in the page; slot -1 means "do not write".
struct PagedKvLayout {
  int64_t num_pages = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 256;  // a power of two, at least 16
  int32_t head_dim = 0;
  KvOrder order = KvOrder::kHnd;

  // All strides are in elements.
  TOKLINE_HOST_DEVICE constexpr int64_t KvStride() const {
    return int64_t{num_kv_heads} * page_size * head_dim;
  }
  TOKLINE_HOST_DEVICE constexpr int64_t PageStride() const { return 2 * KvStride(); }
  TOKLINE_HOST_DEVICE constexpr int64_t HeadStride() const {
    return order == KvOrder::kHnd ? int64_t{page_size} * head_dim : int64_t{head_dim};
  }
  TOKLINE_HOST_DEVICE constexpr int64_t RowStride() const {
    return order == KvOrder::kHnd ? int64_t{head_dim} : int64_t{num_kv_heads} * head_dim;
  }
  TOKLINE_HOST_DEVICE PageSplit Pages() const {
#ifdef __CUDA_ARCH__
    return {31 - __clz(page_size), page_size - 1};
#else
    return {std::countr_zero(static_cast<uint32_t>(page_size)), page_size - 1};
#endif
  }
  int64_t PagesFor(int64_t tokens) const { return Pages().PagesFor(tokens); }
  // The offset in elements of the K row at (page, head, position in the page).
  TOKLINE_HOST_DEVICE constexpr int64_t KeyOffset(int64_t page, int32_t head, int32_t row) const {
    return page * PageStride() + head * HeadStride() + row * RowStride();
  }
  TOKLINE_HOST_DEVICE constexpr int64_t ValueOffset(int64_t page, int32_t head, int32_t row) const {
    return KeyOffset(page, head, row) + KvStride();
  }
  // The row of a kHnd pool, in units of head_dim, as tensor copies count rows: of K if `value` is
  // 0, of V if it is 1.
  TOKLINE_HOST_DEVICE constexpr int64_t HeadRow(int64_t page, int32_t value, int32_t head,
                                                int32_t row) const {
    return ((page * 2 + value) * num_kv_heads + head) * page_size + row;
  }
  // The number of tokens in a box of a PagedKvMap: those of a page, but at most those of a tile.
  TOKLINE_HOST_DEVICE constexpr int32_t BoxTokens(int32_t tile_tokens) const {
    return page_size < tile_tokens ? page_size : tile_tokens;
  }
  TOKLINE_HOST_DEVICE constexpr int64_t NumElements() const { return num_pages * PageStride(); }
  TOKLINE_HOST_DEVICE constexpr int64_t NumSlots() const { return num_pages * page_size; }
};

// What a kernel needs from a layout of 2-byte elements, computed once on the host. It then lies in
// constant memory, and takes neither registers nor instructions.
struct PagedKvBytes {
  PagedKvBytes() = default;
  explicit PagedKvBytes(const PagedKvLayout& layout)
      : page(layout.PageStride() * 2),
        value(layout.KvStride() * 2),
        head(layout.HeadStride() * 2),
        row(static_cast<int32_t>(layout.RowStride() * 2)),
        pages(layout.Pages()) {}
  // The byte offset of the K row at (page, head, position in the page); the V row lies `value`
  // bytes further.
  TOKLINE_HOST_DEVICE constexpr int64_t KeyOffset(int32_t at_page, int32_t at_head,
                                                  int32_t at_row) const {
    return at_page * page + at_head * head + int64_t{at_row} * row;
  }

  int64_t page = 0, value = 0, head = 0;  // strides
  int32_t row = 0;
  PageSplit pages = {};
};

inline void Validate(const PagedKvLayout& layout) {
  Require(layout.num_pages >= 0, "num_pages is ", layout.num_pages, "; it must be >= 0");
  Require(layout.num_kv_heads >= 1, "num_kv_heads is ", layout.num_kv_heads, "; it must be >= 1");
  Require(layout.page_size >= 16 && (layout.page_size & (layout.page_size - 1)) == 0,
          "page_size is ", layout.page_size, "; it must be a power of two from 16");
  Require(layout.head_dim == 64 || layout.head_dim == 128, "head_dim is ", layout.head_dim,
          "; supported are 64 and 128");
}

}  // namespace tokline
