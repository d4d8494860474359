// Translates the expressions of tokenizer.json for PCRE2, and matches them. Files are untrusted:
// the size of an expression, its nesting and the steps of a match are limited.
#include "harness/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "harness/platform/printable.h"
#include "harness/text/newer_code_points.h"
#include "harness/text/utf8.h"

namespace tokline {
namespace {

constexpr size_t kMaxExpressionBytes = 4096;
constexpr uint32_t kMatchLimit = 50'000'000;  // steps per match

// The texts that may follow "(" in a group that is not plain: both dialects treat these alike.
constexpr std::string_view kGroups[] = {"?:", "?i:", "?=", "?!", "?<=", "?<!", "?>"};
constexpr std::string_view kCategories[] = {"L", "Ll", "Lm", "Lo", "Lt", "Lu", "M",
                                            "N", "Nd", "Nl", "No", "P",  "S",  "Z"};
constexpr std::string_view kPlainEscapes = "rntf\\.+*?()[]{}|^$/-'\"#&~ !,:;<=>@_`%";

// Rewrites an Oniguruma expression for PCRE2, or refuses it.
class Translation {
 public:
  explicit Translation(std::string_view expression) : in_(expression) {}

  std::string Run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        Escape();
      } else if (in_class_) {
        InClass(c);
      } else {
        OutsideClass(c);
      }
    }
    if (in_class_) Refuse("a class that does not end");
    return std::move(out_);
  }

 private:
  [[noreturn]] void Refuse(std::string_view what) const {
    throw RuntimeFailure(StrCat("the expression ", Quoted(in_, 240), " has ", what, " at byte ",
                                at_, ", which is not supported"));
  }

  void Take(size_t bytes) {
    out_.append(in_, at_, bytes);
    at_ += bytes;
  }

  void Escape() {
    if (at_ + 1 == in_.size()) Refuse("a backslash at its end");
    const char c = in_[at_ + 1];
    const auto put = [&](std::string_view text) {
      out_ += text;
      at_ += 2;
    };
    if (c == 's') return put(R"(\p{White_Space})");
    if (c == 'S') return put(R"(\P{White_Space})");
    if (c == 'p' || c == 'P') return Property(c == 'P');
    if (kPlainEscapes.find(c) == kPlainEscapes.npos) {
      Refuse(StrCat("the escape ", Quoted(in_.substr(at_, 2))));
    }
    Take(2);
  }

  // \p{L} or \P{L}, plus the members that PCRE2 may not know yet.
  void Property(bool negated) {
    const std::string_view text = in_.substr(at_ + 2);
    const size_t end = std::min(text.find('}'), text.size());
    const std::string_view category =
        text.starts_with('{') ? text.substr(1, end - 1) : std::string_view();
    if (std::ranges::find(kCategories, category) == std::end(kCategories)) {
      Refuse(StrCat("a property other than one of the general categories ", Joined(kCategories)));
    }
    if (negated && in_class_) Refuse("a negated property inside a class");
    // PCRE2 takes all three for each other where case is ignored, Oniguruma does not.
    const bool cased = category == "Ll" || category == "Lt" || category == "Lu";
    if (cased && std::ranges::count(ignores_case_, true) > 0) {
      Refuse(StrCat("\\p{", category, "} in a group that ignores case"));
    }
    const std::string members = StrCat("\\p{", category, "}", NewerMembers(category));
    out_ += in_class_ ? members : StrCat(negated ? "[^" : "[", members, "]");
    at_ += 2 + end + 1;
  }

  void InClass(char c) {
    if (c == '[') Refuse("a class inside a class");
    if (in_.substr(at_, 2) == "&&") Refuse("the operator &&");
    if (c == ']') in_class_ = false;
    Take(1);
  }

  void OutsideClass(char c) {
    if (c == '^') Refuse("the anchor ^");
    if (c == '$') {  // before each newline, and at the end
      out_ += "(?m:$)";
      ++at_;
      return;
    }
    if (c == '(') ignores_case_.push_back(in_.substr(at_ + 1, 3) == "?i:");
    if (c == ')' && !ignores_case_.empty()) ignores_case_.pop_back();
    if (c == '(' && in_.substr(at_ + 1, 1) == "?") {
      for (const std::string_view group : kGroups) {
        if (in_.substr(at_ + 1, group.size()) == group) return Take(1 + group.size());
      }
      Refuse(StrCat("the group ", Quoted(in_.substr(at_, 4))));
    }
    if (c == '(' && in_.substr(at_ + 1, 1) == "*") Refuse("a verb");
    if (in_.substr(at_, 2) == "{,") Refuse("the quantifier {,n}");
    if (c == '}' && in_.substr(at_ + 1, 1) == "+") Refuse("the quantifier }+");
    if (c == '[') {
      in_class_ = true;
      Take(1);
      if (in_.substr(at_, 1) == "^") Take(1);
      if (in_.substr(at_, 1) == "]") Refuse("] as the first of a class");
      return;
    }
    Take(1);
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::vector<bool> ignores_case_;  // of each open group
};

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Pattern::Compiled {
  ~Compiled() {
    pcre2_code_free(code);
    pcre2_match_context_free(context);
  }
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
};

Pattern Pattern::Read(const JsonNode& node) {
  node.AllowKeys({"String", "Regex"});
  if (const std::optional<JsonNode> text = node.Find("String")) {
    if (text->Text().empty()) text->Refuse("it must not be empty");
    return Literal(text->Text());
  }
  const JsonNode expression = node.Member("Regex");
  try {
    return Regex(expression.Text());
  } catch (const RuntimeFailure& error) {
    expression.Fail(error.what());
  }
}

Pattern Pattern::Literal(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

Pattern Pattern::Regex(std::string_view expression) {
  if (expression.size() > kMaxExpressionBytes) {
    throw RuntimeFailure(StrCat("the expression has ", expression.size(), " bytes; at most ",
                                kMaxExpressionBytes, " are allowed"));
  }
  RequireUtf8(expression, "the expression");
  const std::string translated = Translation(expression).Run();
  auto compiled = std::make_shared<Compiled>();
  int error = 0;
  size_t offset = 0;
  pcre2_compile_context* settings = pcre2_compile_context_create(nullptr);
  if (settings == nullptr) throw std::bad_alloc();
  pcre2_set_newline(settings, PCRE2_NEWLINE_LF);  // the only character that "." does not match
  pcre2_set_parens_nest_limit(settings, 64);
  compiled->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, settings);
  pcre2_compile_context_free(settings);
  if (compiled->code == nullptr) {
    throw RuntimeFailure(StrCat("the expression ", Quoted(translated, 240), " is refused at byte ",
                                offset, ": ", ErrorText(error)));
  }
  // Without JIT support, this fails and the interpreter is used.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  compiled->context = pcre2_match_context_create(nullptr);
  if (compiled->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(compiled->context, kMatchLimit);
  Pattern pattern;
  pattern.text_ = expression;
  pattern.compiled_ = std::move(compiled);
  return pattern;
}

void Pattern::Cover(std::string_view text, const std::function<void(MatchSpan)>& visit) const {
  size_t done = 0;
  const auto emit = [&](size_t begin, size_t end) {
    if (done != begin) visit({done, begin, false});
    visit({begin, end, true});
    done = end;
  };
  if (!compiled_) {
    for (size_t at = 0; (at = text.find(text_, at)) != text.npos; at += text_.size()) {
      emit(at, at + text_.size());
    }
  } else {
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create_from_pattern(compiled_->code, nullptr), &pcre2_match_data_free);
    if (match == nullptr) throw std::bad_alloc();
    const size_t* bounds = pcre2_get_ovector_pointer(match.get());
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t from = 0;
    while (from <= text.size()) {
      int found = pcre2_match(compiled_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                              match.get(), compiled_->context);
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = pcre2_match(compiled_->code, subject, text.size(), from,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(), compiled_->context);
      }
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) {
        throw RuntimeFailure(StrCat("the expression ", Quoted(text_, 240), " at byte ", from,
                                    " of a text of ", text.size(), ": ", ErrorText(found)));
      }
      const size_t begin = bounds[0];
      const size_t end = bounds[1];
      if (begin != end) {
        emit(begin, end);
        from = end;
        continue;
      }
      // An empty match splits the text, but only once at the same place.
      if (begin != done || begin == 0) emit(begin, end);
      from = begin < text.size() ? begin + Utf8Length(text[begin]) : begin + 1;
    }
  }
  if (done != text.size()) visit({done, text.size(), false});
}

std::string Pattern::Replace(std::string_view text, std::string_view content,
                             size_t max_bytes) const {
  std::string replaced;
  Cover(text, [&](MatchSpan span) {
    const std::string_view part =
        span.matched ? content : text.substr(span.begin, span.end - span.begin);
    if (part.size() > max_bytes - replaced.size()) {
      throw RuntimeFailure(StrCat("a Replace of the tokenizer makes more than ", max_bytes,
                                  " bytes, the most that are allowed, of a text of ", text.size()));
    }
    replaced += part;
  });
  return replaced;
}

}  // namespace tokline
