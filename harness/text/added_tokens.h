// The `added_tokens` of tokenizer.json: tokens that are searched for in the text before BPE merges
// anything.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/platform/json_node.h"
#include "harness/text/bpe_model.h"
#include "harness/text/normalizer.h"

namespace tokline {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string text;  // what it decodes to: `content`, after normalization if `normalized`
  bool special = false;
  bool single_word = false;  // matches only if no word character is adjacent
  bool strip_left = false;   // also consumes the white space before it
  bool strip_right = false;
  bool normalized = false;  // searched for after normalization
};

// A range [begin, end) of a text in which special tokens are not recognized.
struct PlainRange {
  size_t begin = 0;
  size_t end = 0;
};

class AddedTokens {
 public:
  // `root` is the whole file. Throws RuntimeFailure if a token's id is not the one that Hugging
  // Face tokenizers would assign: its id in the vocabulary, otherwise the next free id.
  AddedTokens(const JsonNode& root, const BpeModel& model, const Normalizer& normalizer);

  struct Part {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;  // null for ordinary text
  };
  // Splits `text` into parts that cover it. The leftmost token is taken first, and the longest if
  // several begin at the same place. `plain` must be sorted and free of overlaps.
  std::vector<Part> SplitBeforeNormalizing(std::string_view text,
                                           const std::vector<PlainRange>& plain) const;
  std::vector<Part> SplitNormalized(std::string_view text,
                                    const std::vector<PlainRange>& plain) const;
  // Whether some special token is searched for in normalized text.
  bool HasNormalizedSpecial() const { return has_normalized_special_; }

  const AddedToken* Find(int32_t id) const;
  const AddedToken* Find(std::string_view content) const;
  int32_t MaxId() const { return max_id_; }

 private:
  // A trie over bytes. Node 0 is the root.
  class Trie {
   public:
    void Add(std::string_view word, int32_t index);
    // Returns the index of the longest word that begins at `at` and sets `length`; -1 if there is
    // none.
    int32_t Longest(std::string_view text, size_t at, size_t& length) const;

   private:
    struct Node {
      std::map<unsigned char, int32_t> children;
      int32_t index = -1;
    };
    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::array<bool, 256> starts_{};
  };

  AddedToken ReadToken(const JsonNode& node) const;
  void CheckId(const JsonNode& node, const AddedToken& token, const BpeModel& model) const;
  std::vector<Part> Split(const Trie& trie, std::string_view text,
                          const std::vector<PlainRange>& plain) const;

  std::vector<AddedToken> tokens_;
  std::map<int32_t, size_t> by_id_;
  std::map<std::string, size_t, std::less<>> by_content_;
  Trie before_;
  Trie normalized_;
  int32_t max_id_ = -1;
  bool has_normalized_special_ = false;
};

}  // namespace tokline
