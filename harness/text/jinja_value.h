// The values of chat templates: the Python values with which Jinja programs compute.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "harness/text/marked_text.h"
#include "kernels/common/error.h"

namespace tokline::jinja {

// Something that a program must not do. The interpreter adds the file and the line.
class Error : public std::runtime_error {
 public:
  template <typename... Parts>
  explicit Error(const Parts&... parts) : std::runtime_error(StrCat(parts...)) {}
};

// The program called raise_exception: it does not take these messages.
class Raised : public Error {
 public:
  using Error::Error;
};

class Value;
struct Dict;
struct Arguments;
struct Loop;

struct Undefined {
  std::string name;  // of the missing value, for messages
};
struct None {};
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
};
// The result of map, select and the like: it can be iterated over, but has no length, items or
// text. Unlike Python's generators, it is never exhausted.
struct Generator {
  std::vector<Value> items;
};
// The result of namespace(), which is the only mutable value.
struct Namespace;
// A function, a macro, or a method of a value.
struct Callable {
  std::string name;
  std::function<Value(Arguments&)> call;
};

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const MarkedText>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                   std::shared_ptr<Namespace>, std::shared_ptr<const Loop>,
                   std::shared_ptr<const Callable>, std::shared_ptr<const Generator>>;

  Value() : value_(None{}) {}
  Value(None) : Value() {}
  Value(Undefined undefined) : value_(std::move(undefined)) {}
  Value(bool flag) : value_(flag) {}
  Value(int64_t number) : value_(number) {}
  Value(double number) : value_(number) {}
  Value(MarkedText text) : value_(std::make_shared<const MarkedText>(std::move(text))) {}
  Value(std::string text) : Value(MarkedText(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list);
  Value(Dict dict);
  Value(Generator generator);
  Value(Namespace names);
  Value(Callable callable);
  Value(std::shared_ptr<const Loop> loop) : value_(std::move(loop)) {}

  template <typename T>
  const T* If() const {
    if constexpr (std::is_same_v<T, MarkedText> || std::is_same_v<T, List> ||
                  std::is_same_v<T, Dict> || std::is_same_v<T, Callable> ||
                  std::is_same_v<T, Loop> || std::is_same_v<T, Generator>) {
      const auto* pointer = std::get_if<std::shared_ptr<const T>>(&value_);
      return pointer == nullptr ? nullptr : pointer->get();
    } else {
      return std::get_if<T>(&value_);
    }
  }
  Namespace* IfNamespace() const {
    const auto* pointer = std::get_if<std::shared_ptr<Namespace>>(&value_);
    return pointer == nullptr ? nullptr : pointer->get();
  }
  template <typename T>
  bool Is() const {
    return If<T>() != nullptr;
  }

  bool Truth() const;
  std::string_view TypeName() const;        // Python's, for messages: "str", "NoneType"
  std::optional<int64_t> Integer() const;   // of an integer, or of a bool, which is 0 or 1
  std::optional<double> Number() const;     // the same, and of a float
  const MarkedText& Text() const;           // throws Error unless it is a text
  MarkedText Str() const;                   // Python's str()
  bool Equals(const Value& other) const;    // Python's ==
  bool LessThan(const Value& other) const;  // Python's <; throws Error
  std::vector<Value> Items() const;         // the items that a loop visits; throws Error
  int64_t Length() const;                   // Python's len(); throws Error
  bool Contains(const Value& item) const;   // Python's `item in this`; throws Error

 private:
  Variant value_;
};

struct Dict {
  std::vector<std::pair<MarkedText, Value>> items;  // in the order in which they were added

  const Value* Find(std::string_view key) const;
  void Put(MarkedText key, Value value);
};

struct Namespace {
  Dict names;
};

// The state of a `for` loop, which its body sees as `loop`.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  int64_t depth = 1;
  std::function<Value(Arguments&)> recurse;  // of a recursive loop
};

// The arguments of a call. A callee takes them one by one and then calls Finish().
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Takes the argument at this position or of this name, if it is there.
  std::optional<Value> Take(size_t position, std::string_view name);
  Value Require(size_t position, std::string_view name);
  std::string TextOr(size_t position, std::string_view name, std::string_view missing);
  bool FlagOr(size_t position, std::string_view name, bool missing);
  // Throws Error if there were more than `most` by position, or others by name.
  void Finish(size_t most) const;
};

// Python's repr(), and json.dumps(ensure_ascii=False).
MarkedText Repr(const Value& value);
struct JsonStyle {
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
MarkedText ToJson(const Value& value, const JsonStyle& style);

// Python's str() of a float.
std::string FloatText(double number);

// Python's str.isspace() for one code point.
bool IsPythonSpace(char32_t c);

// The bounds [begin, end) that remain when characters for which `drop` is true are removed from
// both or one of the ends.
std::pair<size_t, size_t> Stripped(std::string_view text, bool left, bool right,
                                   const std::function<bool(char32_t)>& drop = IsPythonSpace);

}  // namespace tokline::jinja
