// Lays out arrays in one block of memory, each 256 B aligned. With a null base it only measures.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/rounding.h"

namespace tokline {

class Carver {
 public:
  static constexpr int64_t kAlignment = 256;

  explicit Carver(std::byte* base) : base_(base) {}

  // Returns the next `bytes` bytes; null if `bytes` is 0 or if the base is null.
  std::byte* TakeBytes(int64_t bytes) {
    const int64_t begin = size_;
    size_ += RoundUp(bytes, kAlignment);
    return base_ == nullptr || bytes == 0 ? nullptr : base_ + begin;
  }
  template <typename T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }
  int64_t Size() const { return size_; }

 private:
  std::byte* base_;
  int64_t size_ = 0;
};

}  // namespace tokline
