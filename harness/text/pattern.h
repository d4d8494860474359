// A pattern of tokenizer.json: a literal string, or a regular expression in the dialect that
// Hugging Face tokenizers compile with Oniguruma. PCRE2 matches it with the same result.
//
// The dialects differ in places, so each escape and group of an expression is checked: \s becomes
// White_Space (that of PCRE2 also includes U+180E), categories get the members of newer Unicode
// versions, $ becomes Oniguruma's, and constructs that the two dialects treat differently (other
// anchors, \w, \h, scripts, nested classes, {n,m}+) are refused by name.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "harness/platform/json_node.h"

namespace tokline {

struct MatchSpan {
  size_t begin = 0;
  size_t end = 0;
  bool matched = true;  // false for the text between two matches
};

class Pattern {
 public:
  // Reads {"String": "..."} or {"Regex": "..."}.
  static Pattern Read(const JsonNode& node);
  static Pattern Literal(std::string text);
  // Throws RuntimeFailure that says which part of the expression is refused, and where it is.
  static Pattern Regex(std::string_view expression);

  // Calls `visit` in order with spans that cover `text`: the matches and the texts between them.
  // `text` must be valid UTF-8. Throws RuntimeFailure if a match needs more steps than the limit.
  void Cover(std::string_view text, const std::function<void(MatchSpan)>& visit) const;

  // Puts `content` in place of each match. Throws RuntimeFailure, with the sizes, before the result
  // has more than `max_bytes`.
  std::string Replace(std::string_view text, std::string_view content, size_t max_bytes) const;

 private:
  struct Compiled;
  Pattern() = default;

  std::string text_;                          // the literal or the expression
  std::shared_ptr<const Compiled> compiled_;  // null for a literal
};

}  // namespace tokline
