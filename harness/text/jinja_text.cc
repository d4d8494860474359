// Python's methods of str, on marked texts.
#include "harness/text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "harness/text/utf8.h"

namespace tokline::jinja {
namespace {

char32_t Upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t Lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}
char32_t Title(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

// Calls `visit` with each code point and its bounds.
template <typename Visit>
void ForEach(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + Utf8Length(text[at]);
    visit(DecodeUtf8(text.substr(at, end - at)), at, end);
    at = end;
  }
}

bool AllOf(std::string_view text, const std::function<bool(char32_t)>& holds) {
  bool all = !text.empty();
  ForEach(text, [&](char32_t c, size_t, size_t) { all = all && holds(c); });
  return all;
}

utf8proc_category_t CategoryOf(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
bool IsLetter(char32_t c) {
  const auto category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsDecimal(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_ND; }

bool IsLineBreak(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::vector<Value> SplitLines(Context& context, const MarkedText& text, bool keep_ends) {
  const std::string& bytes = text.Bytes();
  std::vector<Value> lines;
  size_t begin = 0;
  size_t done = 0;
  ForEach(bytes, [&](char32_t c, size_t at, size_t end) {
    if (at < done || !IsLineBreak(c)) return;
    const size_t after = bytes.compare(at, 2, "\r\n") == 0 ? end + 1 : end;
    context.budget.Step();
    lines.emplace_back(text.Part(begin, keep_ends ? after : at));
    begin = done = after;
  });
  if (begin < bytes.size()) lines.emplace_back(text.Part(begin, bytes.size()));
  return lines;
}

// Splits at white space, from the left or from the right, at most `most` times if that is not
// negative.
std::vector<Value> SplitAtSpace(Context& context, const MarkedText& text, int64_t most,
                                bool from_right) {
  const std::string_view bytes = text.Bytes();
  std::vector<std::pair<size_t, size_t>> words;
  bool in_word = false;
  ForEach(bytes, [&](char32_t c, size_t at, size_t end) {
    if (IsPythonSpace(c)) {
      in_word = false;
      return;
    }
    context.budget.Step();
    if (!in_word) words.emplace_back(at, end);
    words.back().second = end;
    in_word = true;
  });
  // The last allowed piece extends to the end of the text, or the first one to its beginning.
  if (const auto limit = static_cast<size_t>(most); most >= 0 && words.size() > limit) {
    if (from_right) {
      words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(limit) - 1);
      words[0].first = 0;
    } else {
      words.resize(limit + 1);
      words[limit].second = bytes.size();
    }
  }
  std::vector<Value> parts;
  for (const auto& [begin, end] : words) parts.emplace_back(text.Part(begin, end));
  return parts;
}

std::vector<Value> SplitAt(Context& context, const MarkedText& text, const std::string& separator,
                           int64_t most, bool from_right) {
  if (separator.empty()) throw Error("a text cannot be split at an empty one");
  const std::string& bytes = text.Bytes();
  std::vector<Value> parts;
  if (from_right) {
    size_t end = bytes.size();
    while (most < 0 || std::ssize(parts) < most) {
      const size_t found =
          end < separator.size() ? bytes.npos : bytes.rfind(separator, end - separator.size());
      if (found == bytes.npos) break;
      context.budget.Step();
      parts.emplace_back(text.Part(found + separator.size(), end));
      end = found;
    }
    parts.emplace_back(text.Part(0, end));
    std::ranges::reverse(parts);
    return parts;
  }
  size_t begin = 0;
  while (most < 0 || std::ssize(parts) < most) {
    const size_t found = bytes.find(separator, begin);
    if (found == bytes.npos) break;
    context.budget.Step();
    parts.emplace_back(text.Part(begin, found));
    begin = found + separator.size();
  }
  parts.emplace_back(text.Part(begin, bytes.size()));
  return parts;
}

template <bool kFromRight>
Value Split(Context& context, const MarkedText& text, Arguments& arguments) {
  const Value separator = arguments.Take(0, "sep").value_or(Value());
  const int64_t most =
      arguments.Take(1, "maxsplit").value_or(Value(int64_t{-1})).Integer().value_or(-1);
  arguments.Finish(2);
  context.budget.Bytes(text.Size());
  return List{separator.Is<None>()
                  ? SplitAtSpace(context, text, most, kFromRight)
                  : SplitAt(context, text, separator.Text().Bytes(), most, kFromRight)};
}

// startswith and endswith, which take a text or a tuple of texts.
template <bool kBegins>
Value BeginsOrEnds(Context&, const MarkedText& text, Arguments& arguments) {
  const Value with = arguments.Require(0, kBegins ? "prefix" : "suffix");
  arguments.Finish(1);
  const auto holds = [&](const Value& one) {
    const std::string& part = one.Text().Bytes();
    return kBegins ? text.Bytes().starts_with(part) : text.Bytes().ends_with(part);
  };
  const auto* several = with.If<List>();
  return several == nullptr ? holds(with) : std::ranges::any_of(several->items, holds);
}

// find and its relatives return a position in code points.
template <bool kFromRight>
Value Place(Context&, const MarkedText& text, Arguments& arguments) {
  const std::string part = arguments.Require(0, "sub").Text().Bytes();
  arguments.Finish(1);
  const size_t found = kFromRight ? text.Bytes().rfind(part) : text.Bytes().find(part);
  if (found == std::string::npos) return int64_t{-1};
  return static_cast<int64_t>(CountUtf8(std::string_view(text.Bytes()).substr(0, found)));
}

template <bool kFromRight>
Value Partition(Context&, const MarkedText& text, Arguments& arguments) {
  const std::string separator = arguments.Require(0, "sep").Text().Bytes();
  arguments.Finish(1);
  if (separator.empty()) throw Error("a text cannot be split at an empty one");
  const size_t found = kFromRight ? text.Bytes().rfind(separator) : text.Bytes().find(separator);
  if (found == std::string::npos) {
    return kFromRight ? List{{MarkedText(), MarkedText(), text}, true}
                      : List{{text, MarkedText(), MarkedText()}, true};
  }
  const size_t after = found + separator.size();
  return List{{text.Part(0, found), text.Part(found, after), text.Part(after, text.Size())}, true};
}

int64_t CountOf(const MarkedText& text, const std::string& part) {
  if (part.empty()) return static_cast<int64_t>(CountUtf8(text.Bytes())) + 1;
  int64_t count = 0;
  for (size_t at = text.Bytes().find(part); at != std::string::npos;
       at = text.Bytes().find(part, at + part.size())) {
    ++count;
  }
  return count;
}

Value Index(Context& context, const MarkedText& text, Arguments& arguments) {
  const Value place = Place<false>(context, text, arguments);
  if (place.Integer() == -1) throw Error("index does not find the text");
  return place;
}

using Method = Value (*)(Context&, const MarkedText&, Arguments&);

template <Case kCase>
Value Cased(Context& context, const MarkedText& text, Arguments& arguments) {
  arguments.Finish(0);
  context.budget.Bytes(text.Size());
  return ChangeCase(text, kCase);
}
template <bool kLeft, bool kRight>
Value Strip(Context& context, const MarkedText& text, Arguments& arguments) {
  const std::optional<Value> characters = arguments.Take(0, "chars");
  arguments.Finish(1);
  context.budget.Bytes(text.Size());
  return StripText(text, characters, kLeft, kRight);
}
template <bool kPrefix>
Value Without(Context&, const MarkedText& text, Arguments& arguments) {
  const std::string part = arguments.Require(0, kPrefix ? "prefix" : "suffix").Text().Bytes();
  arguments.Finish(1);
  if (kPrefix && text.Bytes().starts_with(part)) return text.Part(part.size(), text.Size());
  if (!kPrefix && text.Bytes().ends_with(part)) return text.Part(0, text.Size() - part.size());
  return text;
}
template <bool (*kHolds)(char32_t)>
Value Every(Context&, const MarkedText& text, Arguments& arguments) {
  arguments.Finish(0);
  return AllOf(text.Bytes(), kHolds);
}
template <bool kUpper>
Value AllCased(Context&, const MarkedText& text, Arguments& arguments) {
  arguments.Finish(0);
  return IsCased(text.Bytes(), kUpper);
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", Cased<Case::kCapital>},
    {"count",
     [](Context&, const MarkedText& text, Arguments& arguments) -> Value {
       const std::string part = arguments.Require(0, "sub").Text().Bytes();
       arguments.Finish(1);
       return CountOf(text, part);
     }},
    {"endswith", BeginsOrEnds<false>},
    {"find", Place<false>},
    {"index", Index},
    {"isalnum", Every<[](char32_t c) { return IsLetter(c) || IsDecimal(c); }>},
    {"isalpha", Every<IsLetter>},
    {"isdigit", Every<IsDecimal>},
    {"islower", AllCased<false>},
    {"isspace", Every<IsPythonSpace>},
    {"isupper", AllCased<true>},
    {"join",
     [](Context& context, const MarkedText& text, Arguments& arguments) -> Value {
       const std::vector<Value> items = arguments.Require(0, "iterable").Items();
       arguments.Finish(1);
       for (const Value& item : items) item.Text();  // only texts can be joined
       return JoinTexts(context, text, items);
     }},
    {"lower", Cased<Case::kLower>},
    {"lstrip", Strip<true, false>},
    {"partition", Partition<false>},
    {"removeprefix", Without<true>},
    {"removesuffix", Without<false>},
    {"replace",
     [](Context& context, const MarkedText& text, Arguments& arguments) -> Value {
       const MarkedText old_text = arguments.Require(0, "old").Text();
       const MarkedText new_text = arguments.Require(1, "new").Text();
       const Value count = arguments.Take(2, "count").value_or(Value(int64_t{-1}));
       arguments.Finish(3);
       return ReplaceText(context, text, old_text, new_text, count.Integer().value_or(-1));
     }},
    {"rfind", Place<true>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<false, true>},
    {"split", Split<false>},
    {"splitlines",
     [](Context& context, const MarkedText& text, Arguments& arguments) -> Value {
       const bool keep_ends = arguments.FlagOr(0, "keepends", false);
       arguments.Finish(1);
       context.budget.Bytes(text.Size());
       return List{SplitLines(context, text, keep_ends)};
     }},
    {"startswith", BeginsOrEnds<true>},
    {"strip", Strip<true, true>},
    {"title", Cased<Case::kPythonTitle>},
    {"upper", Cased<Case::kUpper>}};

}  // namespace

MarkedText ChangeCase(const MarkedText& text, Case to) {
  MarkedText changed;
  bool begins = true;  // a word, or the text
  ForEach(text.Bytes(), [&](char32_t c, size_t at, size_t) {
    char32_t other = c;
    if (to == Case::kUpper) {
      other = Upper(c);
    } else if (to == Case::kLower || !begins) {
      other = Lower(c);
    } else {
      other = Title(c);
    }
    constexpr std::u32string_view kBetweenWords = U"-({[<";
    if (to == Case::kTitle) {
      begins = IsPythonSpace(c) || kBetweenWords.find(c) != kBetweenWords.npos;
    } else {
      begins = to == Case::kPythonTitle && Upper(c) == Lower(c);
    }
    std::string bytes;
    AppendUtf8(other, bytes);
    changed.Append(bytes, text.OfMessage(at));
  });
  return changed;
}

bool IsCased(std::string_view text, bool upper) {
  bool cased = false;
  bool other = false;
  ForEach(text, [&](char32_t c, size_t, size_t) {
    const bool is_upper = Lower(c) != c;
    const bool is_lower = Upper(c) != c;
    cased = cased || (upper ? is_upper : is_lower);
    other = other || (upper ? is_lower && !is_upper : is_upper && !is_lower);
  });
  return cased && !other;
}

MarkedText StripText(const MarkedText& text, const std::optional<Value>& characters, bool left,
                     bool right) {
  if (!characters || characters->Is<None>()) {
    const auto [begin, end] = Stripped(text.Bytes(), left, right);
    return text.Part(begin, end);
  }
  std::u32string drop;
  ForEach(characters->Text().Bytes(), [&](char32_t c, size_t, size_t) { drop += c; });
  const auto [begin, end] =
      Stripped(text.Bytes(), left, right, [&](char32_t c) { return drop.find(c) != drop.npos; });
  return text.Part(begin, end);
}

MarkedText ReplaceText(Context& context, const MarkedText& text, const MarkedText& old_text,
                       const MarkedText& new_text, int64_t count) {
  const std::string& bytes = text.Bytes();
  MarkedText replaced;
  size_t done = 0;
  size_t from = 0;
  for (int64_t i = 0; count < 0 || i < count; ++i) {
    const size_t found = bytes.find(old_text.Bytes(), from);
    if (found == bytes.npos) break;
    context.budget.Step();
    context.budget.Bytes(found - done + new_text.Size());
    replaced.Append(text, done, found);
    replaced.Append(new_text);
    done = found + old_text.Size();
    from = done;
    if (old_text.Size() == 0) {  // between all characters
      if (found == bytes.size()) break;
      from = found + Utf8Length(bytes[found]);
    }
  }
  context.budget.Bytes(bytes.size() - done);
  replaced.Append(text, done, bytes.size());
  return replaced;
}

MarkedText JoinTexts(Context& context, const MarkedText& between, const std::vector<Value>& items) {
  MarkedText joined;
  for (size_t i = 0; i < items.size(); ++i) {
    const MarkedText text = items[i].Str();
    context.budget.Step();
    context.budget.Bytes(between.Size() + text.Size());
    if (i > 0) joined.Append(between);
    joined.Append(text);
  }
  return joined;
}

std::string Indentation(const Value& width) {
  if (const auto* text = width.If<MarkedText>()) return text->Bytes();
  const std::optional<int64_t> spaces = width.Integer();
  if (!spaces || *spaces < 0 || *spaces > 256)
    throw Error("an indentation is a text, or 0 to 256 spaces");
  return std::string(static_cast<size_t>(*spaces), ' ');
}

MarkedText IndentText(Context& context, const MarkedText& text, const std::string& indentation,
                      bool first, bool blank) {
  MarkedText whole = text;
  whole.Append("\n");
  const std::vector<Value> lines = SplitLines(context, whole, false);
  MarkedText indented;
  for (size_t i = 0; i < lines.size(); ++i) {
    const MarkedText& line = lines[i].Text();
    context.budget.Bytes(line.Size() + indentation.size() + 1);
    if (i > 0) indented.Append("\n");
    if (i == 0 ? first : blank || line.Size() > 0) indented.Append(indentation);
    indented.Append(line);
  }
  return indented;
}

std::optional<double> ParseFloat(const std::string& text) {
  const std::string_view number = std::string_view(text).substr(text.starts_with('+') ? 1 : 0);
  double value = 0;
  const char* const end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<Value> TextMethod(Context& context, const MarkedText& text, std::string_view name) {
  const auto* const found =
      std::ranges::find(kMethods, name, &std::pair<std::string_view, Method>::first);
  if (found == std::end(kMethods)) return std::nullopt;
  return Callable{std::string(name), [&context, text, call = found->second](Arguments& arguments) {
                    return call(context, text, arguments);
                  }};
}

}  // namespace tokline::jinja
