// The `pre_tokenizer` of tokenizer.json: splits text into the pieces inside which tokens are
// merged.
//
// Every kind reduces to three kinds of step on each piece: split it at a pattern, add a prefix,
// replace each space. With ByteLevel, each byte of a piece is then read as one character, which
// BpeModel does.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/platform/json_node.h"
#include "harness/text/pattern.h"

namespace tokline {

struct TextPiece {
  std::string_view text;
  bool starts_text = false;  // whether it begins the whole input
  bool goes_on = false;      // whether it continues a text and therefore gets no prefix
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // leaves the text in one piece
  // Supports ByteLevel, Digits, Split, Metaspace, and Sequence of these. Others are refused by
  // name.
  static PreTokenizer Read(const JsonNode& node);

  // Whether each byte of a piece stands for one character.
  bool ByteLevel() const { return byte_level_; }

  // No piece is empty. Each piece is a view into `text` or into a string in `made`.
  std::vector<TextPiece> Split(TextPiece text, std::deque<std::string>& made) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct SplitAt {
    Pattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct Prefix {
    std::string text;         // added unless the piece starts with it
    bool only_first = false;  // only to the first piece of the input
  };
  struct ReplaceSpaces {
    std::string with;
  };
  using Step = std::variant<SplitAt, Prefix, ReplaceSpaces>;

  void Add(const JsonNode& node, int depth);
  void AddMetaspace(const JsonNode& node);
  static Behavior ReadBehavior(const JsonNode& node);
  static void Apply(const SplitAt& split, TextPiece piece, std::vector<TextPiece>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace tokline
