// The `model` of tokenizer.json: byte-pair encoding of one piece of text.
//
// A piece starts as its characters (or, at byte level, its bytes). The adjacent pair with the
// lowest rank, and the leftmost of these, is merged until no pair can be merged. A heap of the
// pairs makes this O(n log n) for a piece of n characters.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "harness/platform/json_node.h"
#include "harness/text/merge_table.h"

namespace tokline {

class BpeModel {
 public:
  BpeModel() = default;
  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;

  // `byte_level`: the bytes that come from the pre-tokenizer stand for characters of the byte
  // alphabet.
  static BpeModel Read(const JsonNode& node, bool byte_level);

  // Appends the ids of a piece, which must not be empty. A character that is not in the vocabulary
  // becomes byte tokens, the unknown token or nothing, as the file says.
  void Encode(std::string_view piece, std::vector<int32_t>& ids) const;

  std::optional<int32_t> Find(std::string_view token) const;
  // The token's text as written in the file, or null if no token has this id.
  const std::string* Token(int32_t id) const;
  int64_t Size() const { return static_cast<int64_t>(ids_.size()); }
  int32_t MaxId() const { return static_cast<int32_t>(tokens_.size()) - 1; }

 private:
  struct Symbol {
    int32_t id;
    int32_t previous;  // -1 if none
    int32_t next;
    bool merged;  // was merged into its predecessor
  };

  void ReadVocab(const JsonNode& node);
  void ReadMerges(const JsonNode& node);
  void AddMerge(const JsonNode& list, size_t rank, std::string_view left, std::string_view right);
  std::vector<Symbol> InitialSymbols(std::string_view piece) const;
  void MergeAll(std::vector<Symbol>& symbols) const;

  std::unordered_map<std::string_view, int32_t> ids_;  // views into tokens_
  std::vector<std::string> tokens_;                    // by id; empty if there is no such id
  MergeTable merges_;
  // Used at byte level: the id of each byte's character, or -1 if it has none.
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t> whole_pieces_;  // by bytes; with ignore_merges
  std::array<int32_t, 256> fallback_ids_{};                // ids of <0x00> to <0xFF>, or -1
  std::optional<int32_t> unknown_id_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace tokline
