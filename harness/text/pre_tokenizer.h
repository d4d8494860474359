// The `pre_tokenizer` of tokenizer.json: text to the pieces inside which tokens are merged.
//
// Every kind comes down to three steps on each piece: split it at a pattern, put a prefix before
// it, replace each space. ByteLevel then reads the bytes of a piece as one character each; BpeModel
// does.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/text/json_node.h"
#include "harness/text/pattern.h"

namespace tokline {

struct TextPiece {
  std::string_view text;
  bool starts_text = false;  // nothing of the input stands before it
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // leaves the text in one piece
  // ByteLevel, Split, Metaspace, and Sequence of these; others are refused by name.
  static PreTokenizer Read(const JsonNode& node);

  // The bytes of a piece stand for a character each.
  bool ByteLevel() const { return byte_level_; }

  // No piece is empty. Pieces view `text` or a string in `made`.
  std::vector<TextPiece> Split(TextPiece text, std::deque<std::string>& made) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct SplitAt {
    Pattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct Prefix {
    std::string text;         // unless the piece starts with it
    bool only_first = false;  // of the whole input
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
