// Splits a Jinja program into tokens, with the options that transformers sets: a line that has only
// a tag leaves no line (trim_blocks, lstrip_blocks), and a newline at the end is dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tokline::jinja {

struct Token {
  enum class Kind {
    kData,        // text outside of tags
    kStatement,   // {%
    kExpression,  // {{
    kTagEnd,      // %} or }}
    kName,
    kInteger,
    kFloat,
    kString,  // `text` is its contents, without quotes and escapes
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// `source` is valid UTF-8. Throws Error with the line in its message.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace tokline::jinja
