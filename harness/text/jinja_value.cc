// Python's rules for truth, equality, order, length and text of values.
#include "harness/text/jinja_value.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "harness/platform/printable.h"
#include "harness/text/utf8.h"

namespace tokline::jinja {
namespace {

constexpr int kMaxNesting = 64;  // of values inside values

bool IsPrintable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

std::string Hex(char32_t c, int digits) {
  std::string text;
  for (int i = digits - 1; i >= 0; --i) text += "0123456789abcdef"[(c >> (4 * i)) & 15];
  return text;
}

// Calls `visit` with each character and where it begins.
template <typename Visit>
void ForEachCharacter(const MarkedText& text, const Visit& visit) {
  const std::string& bytes = text.Bytes();
  for (size_t at = 0; at < bytes.size();) {
    const std::string_view character = std::string_view(bytes).substr(at, Utf8Length(bytes[at]));
    visit(character, at);
    at += character.size();
  }
}

MarkedText TextRepr(const MarkedText& text) {
  const std::string& bytes = text.Bytes();
  const bool double_quotes = bytes.find('\'') != bytes.npos && bytes.find('"') == bytes.npos;
  const char quote = double_quotes ? '"' : '\'';
  MarkedText out(std::string(1, quote));
  ForEachCharacter(text, [&](std::string_view character, size_t at) {
    const char32_t c = DecodeUtf8(character);
    std::string escaped(character);
    if (c == '\n') {
      escaped = "\\n";
    } else if (c == '\r') {
      escaped = "\\r";
    } else if (c == '\t') {
      escaped = "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      escaped = "\\" + escaped;
    } else if (!IsPrintable(c)) {
      escaped = c < 0x100 ? "\\x" + Hex(c, 2) : c < 0x10000 ? "\\u" + Hex(c, 4) : "\\U" + Hex(c, 8);
    }
    out.Append(escaped, text.OfMessage(at));
  });
  out.Append(std::string(1, quote));
  return out;
}

MarkedText JsonText(const MarkedText& text) {
  MarkedText out("\"");
  ForEachCharacter(text, [&](std::string_view character, size_t at) {
    const char c = character[0];
    constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    constexpr std::string_view kEscaped = "\"\\nrtfb";
    std::string escaped(character);
    if (const size_t found = kPlain.find(c); found != kPlain.npos) {
      escaped = std::string("\\") + kEscaped[found];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped = "\\u" + Hex(static_cast<unsigned char>(c), 4);
    }
    out.Append(escaped, text.OfMessage(at));
  });
  out.Append("\"");
  return out;
}

MarkedText ReprOf(const Value& value, int depth);

// Joins parts inside brackets.
template <typename Items, typename Write>
MarkedText Bracketed(std::string_view open, std::string_view close, const Items& items,
                     const Write& write) {
  MarkedText out{std::string(open)};
  bool first = true;
  for (const auto& item : items) {
    if (!first) out.Append(", ");
    first = false;
    write(item, out);
  }
  out.Append(close);
  return out;
}

MarkedText ReprOf(const Value& value, int depth) {
  if (depth > kMaxNesting) throw Error("values nest deeper than ", kMaxNesting);
  if (const auto* text = value.If<MarkedText>()) return TextRepr(*text);
  if (const auto* list = value.If<List>()) {
    const std::string_view close = !list->is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")";
    return Bracketed(
        list->is_tuple ? "(" : "[", close, list->items,
        [&](const Value& item, MarkedText& out) { out.Append(ReprOf(item, depth + 1)); });
  }
  if (const auto* dict = value.If<Dict>()) {
    return Bracketed("{", "}", dict->items, [&](const auto& item, MarkedText& out) {
      out.Append(TextRepr(item.first));
      out.Append(": ");
      out.Append(ReprOf(item.second, depth + 1));
    });
  }
  if (const auto* undefined = value.If<Undefined>()) {
    static_cast<void>(undefined);
    return MarkedText("Undefined");
  }
  return value.Str();
}

MarkedText JsonOf(const Value& value, const JsonStyle& style, int depth) {
  if (depth > kMaxNesting) throw Error("values nest deeper than ", kMaxNesting);
  if (value.Is<None>()) return MarkedText("null");
  if (const bool* flag = value.If<bool>()) return MarkedText(*flag ? "true" : "false");
  if (value.Is<int64_t>()) return value.Str();
  if (const double* number = value.If<double>()) {
    if (std::isnan(*number)) return MarkedText("NaN");
    if (std::isinf(*number)) return MarkedText(*number > 0 ? "Infinity" : "-Infinity");
    return value.Str();
  }
  if (const auto* text = value.If<MarkedText>()) return JsonText(*text);
  const auto* list = value.If<List>();
  const auto* dict = value.If<Dict>();
  if (list == nullptr && dict == nullptr) {
    throw Error("a value of type ", value.TypeName(), " cannot become JSON");
  }
  const size_t size = list != nullptr ? list->items.size() : dict->items.size();
  if (size == 0) return MarkedText(list != nullptr ? "[]" : "{}");
  const auto new_line = [&](MarkedText& out, int levels) {
    if (!style.indent) return;
    out.Append("\n");
    for (int i = 0; i < levels; ++i) out.Append(*style.indent);
  };
  MarkedText out(list != nullptr ? "[" : "{");
  const auto begin_item = [&](bool first) {
    if (!first) out.Append(style.item_separator);
    new_line(out, depth + 1);
  };
  if (list != nullptr) {
    for (size_t i = 0; i < size; ++i) {
      begin_item(i == 0);
      out.Append(JsonOf(list->items[i], style, depth + 1));
    }
  } else {
    std::vector<size_t> order(size);
    for (size_t i = 0; i < size; ++i) order[i] = i;
    if (style.sort_keys) {
      std::ranges::stable_sort(order, {}, [&](size_t i) { return dict->items[i].first.Bytes(); });
    }
    for (size_t i = 0; i < size; ++i) {
      begin_item(i == 0);
      out.Append(JsonText(dict->items[order[i]].first));
      out.Append(style.key_separator);
      out.Append(JsonOf(dict->items[order[i]].second, style, depth + 1));
    }
  }
  new_line(out, depth);
  out.Append(list != nullptr ? "]" : "}");
  return out;
}

bool EqualAt(const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) throw Error("values nest deeper than ", kMaxNesting);
  if (const auto x = a.Number(), y = b.Number(); x && y) {
    const auto i = a.Integer(), j = b.Integer();
    return i && j ? *i == *j : *x == *y;
  }
  if (a.Is<None>() || a.Is<Undefined>()) {
    return a.Is<None>() == b.Is<None>() && a.Is<Undefined>() == b.Is<Undefined>();
  }
  if (const auto* x = a.If<MarkedText>(), *y = b.If<MarkedText>(); x != nullptr && y != nullptr) {
    return x->Bytes() == y->Bytes();
  }
  if (const auto* x = a.If<List>(), *y = b.If<List>(); x != nullptr && y != nullptr) {
    return x->is_tuple == y->is_tuple &&
           std::ranges::equal(x->items, y->items, [&](const Value& v, const Value& w) {
             return EqualAt(v, w, depth + 1);
           });
  }
  if (const auto* x = a.If<Dict>(), *y = b.If<Dict>(); x != nullptr && y != nullptr) {
    return x->items.size() == y->items.size() &&
           std::ranges::all_of(x->items, [&](const auto& item) {
             const Value* other = y->Find(item.first.Bytes());
             return other != nullptr && EqualAt(item.second, *other, depth + 1);
           });
  }
  return a.IfNamespace() != nullptr && a.IfNamespace() == b.IfNamespace();
}

// Values that hold values may be nested a million deep. They are destroyed one after another,
// because recursive destruction would overflow the stack.
void DestroyInTurn(const void* object, void (*destroy)(const void*)) {
  static thread_local std::vector<std::pair<const void*, void (*)(const void*)>> waiting;
  static thread_local bool busy = false;
  waiting.emplace_back(object, destroy);
  if (busy) return;
  busy = true;
  while (!waiting.empty()) {
    const auto [next, destroy_next] = waiting.back();
    waiting.pop_back();
    destroy_next(next);
  }
  busy = false;
}

template <typename T>
std::shared_ptr<T> Shared(T value) {
  return {new T(std::move(value)), [](T* object) {
            DestroyInTurn(object, [](const void* o) { delete static_cast<const T*>(o); });
          }};
}

}  // namespace

Value::Value(List list) : value_(Shared<const List>(std::move(list))) {}
Value::Value(Dict dict) : value_(Shared<const Dict>(std::move(dict))) {}
Value::Value(Generator generator) : value_(Shared<const Generator>(std::move(generator))) {}
Value::Value(Namespace names) : value_(Shared<Namespace>(std::move(names))) {}
Value::Value(Callable callable) : value_(Shared<const Callable>(std::move(callable))) {}

bool Value::Truth() const {
  if (Is<Undefined>() || Is<None>()) return false;
  if (const auto number = Number()) return *number != 0;
  if (const auto* text = If<MarkedText>()) return text->Size() > 0;
  if (const auto* list = If<List>()) return !list->items.empty();
  if (const auto* dict = If<Dict>()) return !dict->items.empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (const auto* list = If<List>()) return list->is_tuple ? "tuple" : "list";
  constexpr std::string_view kNames[] = {"Undefined", "NoneType",    "bool",     "int",
                                         "float",     "str",         "list",     "dict",
                                         "Namespace", "LoopContext", "function", "generator"};
  return kNames[value_.index()];
}

std::optional<int64_t> Value::Integer() const {
  if (const bool* flag = If<bool>()) return *flag ? 1 : 0;
  if (const int64_t* number = If<int64_t>()) return *number;
  return std::nullopt;
}

std::optional<double> Value::Number() const {
  if (const double* number = If<double>()) return *number;
  if (const auto integer = Integer()) return static_cast<double>(*integer);
  return std::nullopt;
}

const MarkedText& Value::Text() const {
  if (const auto* undefined = If<Undefined>()) throw Error(undefined->name, " is undefined");
  const auto* text = If<MarkedText>();
  if (text == nullptr) throw Error("a text is needed here, not a value of type ", TypeName());
  return *text;
}

MarkedText Value::Str() const {
  if (Is<Undefined>()) return {};
  if (Is<None>()) return MarkedText("None");
  if (const bool* flag = If<bool>()) return MarkedText(*flag ? "True" : "False");
  if (const int64_t* number = If<int64_t>()) return MarkedText(std::to_string(*number));
  if (const double* number = If<double>()) return MarkedText(FloatText(*number));
  if (const auto* text = If<MarkedText>()) return *text;
  if (Is<List>() || Is<Dict>()) return ReprOf(*this, 0);
  throw Error("a value of type ", TypeName(), " has no text");
}

bool Value::Equals(const Value& other) const { return EqualAt(*this, other, 0); }

bool Value::LessThan(const Value& other) const {
  if (const auto a = Number(), b = other.Number(); a && b) {
    const auto i = Integer(), j = other.Integer();
    return i && j ? *i < *j : *a < *b;
  }
  if (const auto* a = If<MarkedText>(), *b = other.If<MarkedText>(); a != nullptr && b != nullptr) {
    return a->Bytes() < b->Bytes();  // UTF-8 keeps the order of code points
  }
  throw Error("values of the types ", TypeName(), " and ", other.TypeName(), " have no order");
}

std::vector<Value> Value::Items() const {
  if (Is<Undefined>()) return {};
  if (const auto* list = If<List>()) return list->items;
  if (const auto* generator = If<Generator>()) return generator->items;
  std::vector<Value> items;
  if (const auto* dict = If<Dict>()) {
    for (const auto& item : dict->items) items.emplace_back(item.first);
    return items;
  }
  if (const auto* text = If<MarkedText>()) {
    ForEachCharacter(*text, [&](std::string_view character, size_t at) {
      items.emplace_back(text->Part(at, at + character.size()));
    });
    return items;
  }
  throw Error("a value of type ", TypeName(), " has no items");
}

int64_t Value::Length() const {
  if (Is<Undefined>()) return 0;
  if (const auto* list = If<List>()) return std::ssize(list->items);
  if (const auto* dict = If<Dict>()) return std::ssize(dict->items);
  if (const auto* text = If<MarkedText>()) return static_cast<int64_t>(CountUtf8(text->Bytes()));
  throw Error("a value of type ", TypeName(), " has no length");
}

bool Value::Contains(const Value& item) const {
  if (Is<Undefined>()) return false;
  if (const auto* text = If<MarkedText>()) {
    return text->Bytes().find(item.Text().Bytes()) != std::string::npos;
  }
  if (const auto* dict = If<Dict>()) {
    const auto* key = item.If<MarkedText>();
    return key != nullptr && dict->Find(key->Bytes()) != nullptr;
  }
  const auto* list = If<List>();
  const auto* generator = If<Generator>();
  if (list == nullptr && generator == nullptr) {
    throw Error("nothing can be in a value of type ", TypeName());
  }
  return std::ranges::any_of(list != nullptr ? list->items : generator->items,
                             [&](const Value& one) { return one.Equals(item); });
}

const Value* Dict::Find(std::string_view key) const {
  for (const auto& item : items) {
    if (item.first.Bytes() == key) return &item.second;
  }
  return nullptr;
}

void Dict::Put(MarkedText key, Value value) {
  for (auto& item : items) {
    if (item.first.Bytes() == key.Bytes()) {
      item.second = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

std::optional<Value> Arguments::Take(size_t position, std::string_view name) {
  const auto found =
      std::ranges::find_if(named, [&](const auto& one) { return one.first == name; });
  if (found != named.end()) {
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  }
  if (position < positional.size()) return positional[position];
  return std::nullopt;
}

Value Arguments::Require(size_t position, std::string_view name) {
  std::optional<Value> value = Take(position, name);
  if (!value) throw Error("the argument ", name, " is missing");
  return *std::move(value);
}

std::string Arguments::TextOr(size_t position, std::string_view name, std::string_view missing) {
  const std::optional<Value> value = Take(position, name);
  return value ? value->Text().Bytes() : std::string(missing);
}

bool Arguments::FlagOr(size_t position, std::string_view name, bool missing) {
  const std::optional<Value> value = Take(position, name);
  return value ? value->Truth() : missing;
}

void Arguments::Finish(size_t most) const {
  if (positional.size() > most) {
    throw Error(positional.size(), " arguments were given; at most ", most, " are allowed");
  }
  if (!named.empty()) throw Error("the argument ", Quoted(named[0].first, 40), " is not supported");
}

MarkedText Repr(const Value& value) { return ReprOf(value, 0); }
MarkedText ToJson(const Value& value, const JsonStyle& style) { return JsonOf(value, style, 0); }

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::abs(number);
  const auto format = size != 0 && (size >= 1e16 || size < 1e-4) ? std::chars_format::scientific
                                                                 : std::chars_format::fixed;
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, format).ptr;
  std::string text(buffer, end);
  if (format == std::chars_format::fixed && text.find('.') == text.npos) text += ".0";
  return text;
}

bool IsPythonSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

std::pair<size_t, size_t> Stripped(std::string_view text, bool left, bool right,
                                   const std::function<bool(char32_t)>& drop) {
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    const size_t length = Utf8Length(text[begin]);
    if (!drop(DecodeUtf8(text.substr(begin, length)))) break;
    begin += length;
  }
  while (right && begin < end) {
    const size_t at = LastCodePoint(text.substr(0, end));
    if (!drop(DecodeUtf8(text.substr(at, end - at)))) break;
    end = at;
  }
  return {begin, end};
}

}  // namespace tokline::jinja
