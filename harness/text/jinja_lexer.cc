// Scans a Jinja program once, from tag to tag, and trims the text between them.
#include "harness/text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "harness/platform/printable.h"
#include "harness/text/jinja_value.h"
#include "harness/text/utf8.h"

namespace tokline::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Newlines become \n, and one at the end is dropped, as Jinja does.
std::string Normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (source.substr(i + 1, 1) == "\n") ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(Normalized(source)) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag();
      Data(tag);
      if (tag == source_.size()) break;
      at_ = tag;
      const char kind = source_[tag + 1];
      if (kind == '#') {
        Comment();
      } else {
        Tag(kind == '%');
      }
    }
    Emit(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw Error("line ", line_, ": ", parts...);
  }

  bool Here(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }

  void Emit(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  // Moves on, and counts the lines that are passed.
  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    if (to > at_) line_begins_ = source_[to - 1] == '\n';
    at_ = to;
  }

  size_t NextTag() const {
    for (size_t open = source_.find('{', at_); open != std::string::npos;
         open = source_.find('{', open + 1)) {
      if (open + 1 < source_.size() &&
          std::string_view("{%#").find(source_[open + 1]) != std::string_view::npos) {
        return open;
      }
    }
    return source_.size();
  }

  // The text up to a tag, or to the end. The tag may strip white space from its end.
  void Data(size_t tag) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const bool at_line_begin = line_begins_;
    if (tag < source_.size()) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (sign == '-') {
        text = text.substr(0, Stripped(text, false, true).second);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        const size_t line = text.rfind('\n') + 1;  // 0 if there is none
        if ((line > 0 || at_line_begin) &&
            Stripped(text.substr(line), true, false).first == text.size() - line) {
          text = text.substr(0, line);
        }
      }
    }
    if (!text.empty()) Emit(Token::Kind::kData, std::string(text));
    Advance(tag);
  }

  size_t AfterSpace(size_t at) const {
    return at + Stripped(std::string_view(source_).substr(at), true, false).first;
  }

  // If a tag ends here, returns the position after it. `close` is "%}", "}}" or "#}".
  size_t EndOfTag(std::string_view close) const {
    const std::string_view rest = std::string_view(source_).substr(at_);
    if (rest.starts_with('-') && rest.substr(1).starts_with(close)) {
      return AfterSpace(at_ + 1 + close.size());
    }
    const bool plus = rest.starts_with('+') && rest.substr(1).starts_with(close) && close != "}}";
    if (plus) return at_ + 1 + close.size();
    if (!rest.starts_with(close)) return 0;
    const size_t end = at_ + close.size();
    return close != "}}" && end < source_.size() && source_[end] == '\n' ? end + 1 : end;
  }

  void Comment() {
    const int begin = line_;
    Advance(at_ + 2);
    while (at_ < source_.size()) {
      if (const size_t end = EndOfTag("#}"); end != 0) return Advance(end);
      Advance(at_ + 1);
    }
    line_ = begin;
    Fail("a comment does not end");
  }

  void Tag(bool statement) {
    const std::string_view close = statement ? "%}" : "}}";
    const int begin = line_;
    Emit(statement ? Token::Kind::kStatement : Token::Kind::kExpression, "");
    Advance(at_ + 2);
    if (Here("-") || Here("+")) Advance(at_ + 1);
    std::string brackets;  // the open ones
    while (true) {
      Advance(AfterSpace(at_));
      if (at_ == source_.size()) {
        line_ = begin;
        Fail("a tag does not end");
      }
      if (const size_t end = brackets.empty() ? EndOfTag(close) : 0; end != 0) {
        Emit(Token::Kind::kTagEnd, "");
        return Advance(end);
      }
      InTag(brackets);
    }
  }

  void InTag(std::string& brackets) {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && (IsNameStart(source_[end]) || IsDigit(source_[end]))) ++end;
      return Take(Token::Kind::kName, end);
    }
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String();
    for (const std::string_view one : kOperators) {
      if (!Here(one)) continue;
      Bracket(one[0], brackets);
      return Take(Token::Kind::kOperator, at_ + one.size());
    }
    Fail("the character ", Quoted(std::string_view(source_).substr(at_, Utf8Length(c))),
         " is not expected here");
  }

  void Take(Token::Kind kind, size_t end) {
    Emit(kind, source_.substr(at_, end - at_));
    Advance(end);
  }

  void Bracket(char c, std::string& open) {
    constexpr std::string_view kOpen = "([{";
    constexpr std::string_view kClose = ")]}";
    if (kOpen.find(c) != kOpen.npos) {
      open += c;
    } else if (const size_t kind = kClose.find(c); kind != kClose.npos) {
      if (open.empty() || open.back() != kOpen[kind]) Fail("'", c, "' closes nothing");
      open.pop_back();
    }
  }

  void Number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        real = true;
        end = exponent;
        digits();
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    Emit(real ? Token::Kind::kFloat : Token::Kind::kInteger, text);
    Advance(end);
  }

  void String() {
    const char quote = source_[at_];
    const int begin = line_;
    std::string text;
    for (size_t i = at_ + 1; i < source_.size(); ++i) {
      if (source_[i] == quote) {
        tokens_.push_back({Token::Kind::kString, std::move(text), begin});
        return Advance(i + 1);
      }
      if (source_[i] != '\\' || i + 1 == source_.size()) {
        text += source_[i];
      } else {
        Escape(++i, text);
      }
    }
    Fail("a string does not end");
  }

  // Python's escapes. `i` is the character after the backslash, and is moved to the last one.
  void Escape(size_t& i, std::string& text) const {
    constexpr std::string_view kNames = "ntr\\'\"abfv";
    constexpr std::string_view kValues = "\n\t\r\\'\"\a\b\f\v";
    const char c = source_[i];
    if (const size_t known = kNames.find(c); known != kNames.npos) {
      text += kValues[known];
      return;
    }
    if (c == '\n') return;  // a continued line
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t value = 0;
      const char* const first = source_.data() + std::min(i + 1, source_.size());
      const char* const last = source_.data() + std::min(i + 1 + digits, source_.size());
      const auto [stop, error] = std::from_chars(first, last, value, 16);
      if (stop != first + digits || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
        Fail("the escape \\", c, " needs ", digits, " hexadecimal digits of a character");
      }
      AppendUtf8(value, text);
      i += digits;
      return;
    }
    if (IsDigit(c) || c == 'N') Fail("the escape \\", c, " is not supported");
    text += '\\';  // any other escape stands for itself
    text += c;
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // whether the last tag, or nothing, ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace tokline::jinja
