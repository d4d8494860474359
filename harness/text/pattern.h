// A pattern of tokenizer.json: a literal string or a regular expression in the dialect that Hugging
// Face tokenizers compile with Oniguruma, matched by PCRE2 with the same result.
//
// The dialects differ in places, so each escape and group of an expression is checked: \s becomes
// White_Space (PCRE2's own has U+180E too), categories get the members of newer Unicode versions,
// and what the two read differently (anchors, \w, \h, scripts, nested classes, {n,m}+) is refused
// by name.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "harness/text/json_node.h"

namespace tokline {

struct MatchSpan {
  size_t begin = 0;
  size_t end = 0;
  bool matched = true;  // false: the text between two matches
};

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}.
  static Pattern Read(const JsonNode& node);
  static Pattern Literal(std::string text);
  // Throws RuntimeFailure that says what of the expression is refused, and where.
  static Pattern Regex(std::string_view expression);

  // Calls `visit` with spans that cover `text`, valid UTF-8, in order: matches and what lies
  // between. Throws RuntimeFailure if the match needs more steps than the limit.
  void Cover(std::string_view text, const std::function<void(MatchSpan)>& visit) const;

  std::string Replace(std::string_view text, std::string_view content) const;

 private:
  struct Compiled;
  Pattern() = default;

  std::string text_;                          // the literal or the expression
  std::shared_ptr<const Compiled> compiled_;  // null: a literal
};

}  // namespace tokline
