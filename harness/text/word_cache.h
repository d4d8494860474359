// A cache of the ids of recently encoded pieces: most text repeats few words.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tokline {

// One slot per hash value; a newer piece replaces an older one. Not synchronized.
class WordCache {
 public:
  static constexpr size_t kMaxPieceBytes = 64;

  // Returns null if the piece is not cached. The result is valid until the next Put.
  const std::vector<int32_t>* Find(std::string_view piece) const {
    const Slot& slot = slots_[Index(piece)];
    return slot.piece == piece ? &slot.ids : nullptr;
  }
  void Put(std::string_view piece, std::vector<int32_t> ids) {
    slots_[Index(piece)] = {std::string(piece), std::move(ids)};
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 14;
  struct Slot {
    std::string piece;  // empty if the slot is free; no piece is empty
    std::vector<int32_t> ids;
  };
  static size_t Index(std::string_view piece) {
    return std::hash<std::string_view>()(piece) % kSlots;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

}  // namespace tokline
