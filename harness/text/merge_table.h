// The merges of a BPE model: maps a pair of tokens to its rank and to the token that it becomes.
// The table uses open addressing in one array, because encoding spends most of its time on this
// lookup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tokline {

class MergeTable {
 public:
  struct Merge {
    int32_t left = kFree;
    int32_t right = 0;
    int32_t rank = 0;
    int32_t id = 0;
  };

  explicit MergeTable(size_t merges = 0) {
    size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.resize(slots);
  }

  // A later merge of the same pair replaces the earlier one. There must be at most as many pairs as
  // the constructor was given.
  void Put(const Merge& merge) { slots_[Slot(merge.left, merge.right)] = merge; }

  // Returns null if the pair has no merge.
  const Merge* Find(int32_t left, int32_t right) const {
    const Merge& merge = slots_[Slot(left, right)];
    return merge.left == kFree ? nullptr : &merge;
  }

 private:
  static constexpr int32_t kFree = -1;

  // The slot that holds the pair, or the free slot where it would go.
  size_t Slot(int32_t left, int32_t right) const {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    size_t slot = static_cast<size_t>(key * 0x9E3779B97F4A7C15 >> 32) & (slots_.size() - 1);
    while (slots_[slot].left != kFree &&
           (slots_[slot].left != left || slots_[slot].right != right)) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  std::vector<Merge> slots_;  // a power of two, at most half occupied
};

}  // namespace tokline
