// Filters, tests and functions. Their arguments and results are those of Jinja 3.1 and of the
// additions of transformers: tojson, raise_exception and strftime_now.
#include "harness/text/jinja_builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "harness/platform/printable.h"
#include "harness/text/jinja_text.h"

namespace tokline::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

using Filter = Value (*)(Context&, const Value&, Arguments&);

// attribute="a.b" or attribute=0, as map and selectattr take them.
Value AttributePath(Context& context, const Value& object, const Value& path) {
  if (path.Integer()) return Item(context, object, path);
  Value value = object;
  std::string_view rest = path.Text().Bytes();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size();
    value = Item(context, value, number ? Value(index) : Value(part));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

// Returns a function that maps an item to the attribute that an argument names, or to itself.
std::function<Value(const Value&)> ByAttribute(Context& context, Arguments& arguments, size_t at) {
  const std::optional<Value> path = arguments.Take(at, "attribute");
  if (!path || path->Is<None>()) return [](const Value& item) { return item; };
  return [&context, path = *path](const Value& item) { return AttributePath(context, item, path); };
}

Value Lowered(const Value& value) {
  return value.Is<MarkedText>() ? Value(ChangeCase(value.Text(), Case::kLower)) : value;
}

Value Default(Context&, const Value& input, Arguments& arguments) {
  const Value other = arguments.Take(0, "default_value").value_or(Value(""));
  const bool falsy_too = arguments.FlagOr(1, "boolean", false);
  arguments.Finish(2);
  return input.Is<Undefined>() || (falsy_too && !input.Truth()) ? other : input;
}

Value Length(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  return input.Length();
}

Value Trim(Context&, const Value& input, Arguments& arguments) {
  const std::optional<Value> characters = arguments.Take(0, "chars");
  arguments.Finish(1);
  return StripText(input.Str(), characters, true, true);
}

template <Case kCase>
Value Cased(Context& context, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  const MarkedText text = input.Str();
  context.budget.Bytes(text.Size());
  return ChangeCase(text, kCase);
}

Value ToText(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  return input.Str();
}

Value ToList(Context& context, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  List list{input.Items()};
  context.budget.Step(std::ssize(list.items));
  return list;
}

Value ToInteger(Context&, const Value& input, Arguments& arguments) {
  const Value missing = arguments.Take(0, "default").value_or(Value(int64_t{0}));
  arguments.Finish(1);
  if (const auto number = input.Integer()) return *number;
  std::optional<double> number = input.Number();
  if (const auto* text = input.If<MarkedText>()) {
    const std::string stripped = StripText(*text, {}, true, true).Bytes();
    const std::string_view digits =
        std::string_view(stripped).substr(stripped.starts_with('+') ? 1 : 0);
    int64_t integer = 0;
    const char* const end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, integer);
    if (parsed.ec == std::errc() && parsed.ptr == end) return integer;
    number = ParseFloat(stripped);
  }
  if (!number || !(std::abs(*number) < 9e18)) return missing;
  return static_cast<int64_t>(*number);
}

Value ToFloat(Context&, const Value& input, Arguments& arguments) {
  const Value missing = arguments.Take(0, "default").value_or(Value(0.0));
  arguments.Finish(1);
  if (const auto number = input.Number()) return *number;
  if (const auto* text = input.If<MarkedText>()) {
    if (const auto number = ParseFloat(StripText(*text, {}, true, true).Bytes())) return *number;
  }
  return missing;
}

Value Join(Context& context, const Value& input, Arguments& arguments) {
  const std::optional<Value> between = arguments.Take(0, "d");
  const auto key = ByAttribute(context, arguments, 1);
  arguments.Finish(2);
  std::vector<Value> items = input.Items();
  for (Value& item : items) item = key(item);
  return JoinTexts(context, between ? between->Str() : MarkedText(), items);
}

Value First(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  const std::vector<Value> items = input.Items();
  return items.empty() ? Value(Undefined{"the first item of an empty sequence"}) : items.front();
}

Value Last(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  if (input.Is<Generator>()) throw Error("last needs a list, not a value of type generator");
  const std::vector<Value> items = input.Items();
  return items.empty() ? Value(Undefined{"the last item of an empty sequence"}) : items.back();
}

Value Reverse(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  std::vector<Value> items = input.Items();
  std::ranges::reverse(items);
  if (input.Is<Generator>()) return List{std::move(items)};
  if (!input.Is<MarkedText>()) return Generator{std::move(items)};
  MarkedText text;
  for (const Value& item : items) text.Append(item.Text());
  return text;
}

Value Replace(Context& context, const Value& input, Arguments& arguments) {
  const MarkedText old_text = arguments.Require(0, "old").Str();
  const MarkedText new_text = arguments.Require(1, "new").Str();
  const Value count = arguments.Take(2, "count").value_or(Value());
  arguments.Finish(3);
  return ReplaceText(context, input.Str(), old_text, new_text, count.Integer().value_or(-1));
}

Value Indent(Context& context, const Value& input, Arguments& arguments) {
  const Value width = arguments.Take(0, "width").value_or(Value(int64_t{4}));
  const bool first = arguments.FlagOr(1, "first", false);
  const bool blank = arguments.FlagOr(2, "blank", false);
  arguments.Finish(3);
  return IndentText(context, input.Str(), Indentation(width), first, blank);
}

Value Json(Context& context, const Value& input, Arguments& arguments) {
  JsonStyle style;
  const bool ascii = arguments.FlagOr(0, "ensure_ascii", false);
  if (ascii) throw Error("tojson(ensure_ascii=true) is not supported");
  const Value indent = arguments.Take(1, "indent").value_or(Value());
  const Value separators = arguments.Take(2, "separators").value_or(Value());
  style.sort_keys = arguments.FlagOr(3, "sort_keys", false);
  arguments.Finish(4);
  if (!indent.Is<None>()) {
    style.indent = Indentation(indent);
    style.item_separator.pop_back();  // the space, which a new line replaces
  }
  if (const auto* pair = separators.If<List>(); pair != nullptr && pair->items.size() == 2) {
    style.item_separator = pair->items[0].Text().Bytes();
    style.key_separator = pair->items[1].Text().Bytes();
  } else if (!separators.Is<None>()) {
    throw Error("tojson takes a pair of texts as separators");
  }
  MarkedText text = ToJson(input, style);
  context.budget.Bytes(text.Size());
  return text;
}

Value Pairs(Context& context, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  Generator pairs;
  if (input.Is<Undefined>()) return pairs;
  const auto* dict = input.If<Dict>();
  if (dict == nullptr)
    throw Error("items needs a dictionary, not a value of type ", input.TypeName());
  context.budget.Step(std::ssize(dict->items));
  for (const auto& [key, value] : dict->items) pairs.items.emplace_back(List{{key, value}, true});
  return pairs;
}

Value Map(Context& context, const Value& input, Arguments& arguments) {
  Generator mapped;
  const std::optional<Value> path = arguments.Take(arguments.positional.size(), "attribute");
  if (path) {
    const std::optional<Value> missing = arguments.Take(arguments.positional.size(), "default");
    arguments.Finish(0);
    for (const Value& item : input.Items()) {
      context.budget.Step();
      Value value = AttributePath(context, item, *path);
      mapped.items.push_back(missing && value.Is<Undefined>() ? *missing : std::move(value));
    }
    return mapped;
  }
  const std::string name = arguments.Require(0, "filter").Text().Bytes();
  arguments.positional.erase(arguments.positional.begin());
  for (const Value& item : input.Items()) {
    context.budget.Step();
    Arguments own = arguments;
    mapped.items.push_back(ApplyFilter(context, name, item, own));
  }
  return mapped;
}

// select, reject, selectattr and rejectattr.
template <bool kWanted, bool kByAttribute>
Value Select(Context& context, const Value& input, Arguments& arguments) {
  std::optional<Value> path;
  if (kByAttribute) {
    path = arguments.Require(0, "attribute");
    arguments.positional.erase(arguments.positional.begin());
  }
  std::optional<std::string> test;
  if (!arguments.positional.empty()) {
    test = arguments.positional[0].Text().Bytes();
    arguments.positional.erase(arguments.positional.begin());
  }
  Generator selected;
  for (const Value& item : input.Items()) {
    context.budget.Step();
    const Value value = path ? AttributePath(context, item, *path) : item;
    Arguments own = arguments;
    const bool holds = test ? ApplyTest(context, *test, value, own) : value.Truth();
    if (holds == kWanted) selected.items.push_back(item);
  }
  return selected;
}

// Sorts by keys. Comparisons are charged beforehand.
void SortBy(Context& context, std::vector<Value>& items, bool reverse, bool case_sensitive,
            const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    keyed.emplace_back(case_sensitive ? key(item) : Lowered(key(item)), item);
  }
  context.budget.Step(std::ssize(items) * 32);
  for (size_t i = 1; i < keyed.size(); ++i)
    keyed[0].first.LessThan(keyed[i].first);  // checks types
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? b.first.LessThan(a.first) : a.first.LessThan(b.first);
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
}

Value Sort(Context& context, const Value& input, Arguments& arguments) {
  const bool reverse = arguments.FlagOr(0, "reverse", false);
  const bool case_sensitive = arguments.FlagOr(1, "case_sensitive", false);
  const auto key = ByAttribute(context, arguments, 2);
  arguments.Finish(3);
  List list{input.Items()};
  SortBy(context, list.items, reverse, case_sensitive, key);
  return list;
}

Value DictSort(Context& context, const Value& input, Arguments& arguments) {
  const bool case_sensitive = arguments.FlagOr(0, "case_sensitive", false);
  const std::string by = arguments.TextOr(1, "by", "key");
  const bool reverse = arguments.FlagOr(2, "reverse", false);
  arguments.Finish(3);
  if (by != "key" && by != "value") throw Error("dictsort takes by=\"key\" or by=\"value\"");
  Arguments none;
  List pairs{Pairs(context, input, none).Items()};
  SortBy(context, pairs.items, reverse, case_sensitive,
         [&](const Value& pair) { return pair.If<List>()->items[by == "key" ? 0 : 1]; });
  return pairs;
}

Value Unique(Context& context, const Value& input, Arguments& arguments) {
  const bool case_sensitive = arguments.FlagOr(0, "case_sensitive", false);
  const auto key = ByAttribute(context, arguments, 1);
  arguments.Finish(2);
  std::vector<Value> seen;
  Generator unique;
  for (const Value& item : input.Items()) {
    const Value own = case_sensitive ? key(item) : Lowered(key(item));
    context.budget.Step(1 + std::ssize(seen));
    if (std::ranges::any_of(seen, [&](const Value& one) { return one.Equals(own); })) continue;
    seen.push_back(own);
    unique.items.push_back(item);
  }
  return unique;
}

template <bool kGreatest>
Value Extreme(Context& context, const Value& input, Arguments& arguments) {
  const bool case_sensitive = arguments.FlagOr(0, "case_sensitive", false);
  const auto key = ByAttribute(context, arguments, 1);
  arguments.Finish(2);
  List list{input.Items()};
  if (list.items.empty()) return Undefined{"the extreme item of an empty sequence"};
  SortBy(context, list.items, kGreatest, case_sensitive, key);
  return list.items[0];
}

Value Absolute(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  if (const auto number = input.Integer()) {
    if (*number == INT64_MIN) throw Error("a number is too large");
    return *number < 0 ? -*number : *number;
  }
  if (const auto number = input.Number()) return std::abs(*number);
  throw Error("abs needs a number, not a value of type ", input.TypeName());
}

Value Round(Context&, const Value& input, Arguments& arguments) {
  const Value precision = arguments.Take(0, "precision").value_or(Value(int64_t{0}));
  const std::string method = arguments.TextOr(1, "method", "common");
  arguments.Finish(2);
  const auto number = input.Number();
  if (!number || precision.Integer() != int64_t{0}) {
    throw Error("round is supported for numbers, to precision 0");
  }
  if (method == "ceil") return std::ceil(*number);
  if (method == "floor") return std::floor(*number);
  if (method != "common") {
    throw Error("the method of round is ", Quoted(method, 40), "; allowed: common, ceil, floor");
  }
  if (const auto integer = input.Integer()) return *integer;
  return std::nearbyint(*number);  // halves to even, as Python
}

Value Sum(Context& context, const Value& input, Arguments& arguments) {
  const auto key = ByAttribute(context, arguments, 0);
  const Value start = arguments.Take(1, "start").value_or(Value(int64_t{0}));
  arguments.Finish(2);
  int64_t integers = start.Integer().value_or(0);
  double reals = start.Is<double>() ? *start.Number() : 0;
  bool real = start.Is<double>();
  for (const Value& item : input.Items()) {
    const Value value = key(item);
    if (const auto integer = value.Integer()) {
      if (__builtin_add_overflow(integers, *integer, &integers)) throw Error("a sum is too large");
    } else if (const auto number = value.Number()) {
      reals += *number;
      real = true;
    } else {
      throw Error("sum needs numbers, not a value of type ", value.TypeName());
    }
  }
  return real ? Value(static_cast<double>(integers) + reals) : Value(integers);
}

Value Same(Context&, const Value& input, Arguments& arguments) {
  arguments.Finish(0);
  return input;
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {{"abs", Absolute},
                                                            {"capitalize", Cased<Case::kCapital>},
                                                            {"count", Length},
                                                            {"d", Default},
                                                            {"default", Default},
                                                            {"dictsort", DictSort},
                                                            {"first", First},
                                                            {"float", ToFloat},
                                                            {"indent", Indent},
                                                            {"int", ToInteger},
                                                            {"items", Pairs},
                                                            {"join", Join},
                                                            {"last", Last},
                                                            {"length", Length},
                                                            {"list", ToList},
                                                            {"lower", Cased<Case::kLower>},
                                                            {"map", Map},
                                                            {"max", Extreme<true>},
                                                            {"min", Extreme<false>},
                                                            {"reject", Select<false, false>},
                                                            {"rejectattr", Select<false, true>},
                                                            {"replace", Replace},
                                                            {"reverse", Reverse},
                                                            {"round", Round},
                                                            {"safe", Same},
                                                            {"select", Select<true, false>},
                                                            {"selectattr", Select<true, true>},
                                                            {"sort", Sort},
                                                            {"string", ToText},
                                                            {"sum", Sum},
                                                            {"title", Cased<Case::kTitle>},
                                                            {"tojson", Json},
                                                            {"trim", Trim},
                                                            {"unique", Unique},
                                                            {"upper", Cased<Case::kUpper>}};

using Test = bool (*)(const Value&, Arguments&);

int64_t RequireInteger(const Value& value) {
  const auto number = value.Integer();
  if (!number) throw Error("an integer is needed, not a value of type ", value.TypeName());
  return *number;
}

template <typename... Types>
bool IsOneOf(const Value& value, Arguments&) {
  return (value.Is<Types>() || ...);
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"boolean", IsOneOf<bool>},
    {"callable", [](const Value& value, Arguments&) { return value.Is<Callable>(); }},
    {"defined", [](const Value& value, Arguments&) { return !value.Is<Undefined>(); }},
    {"divisibleby",
     [](const Value& value, Arguments& arguments) {
       const int64_t by = RequireInteger(arguments.Require(0, "num"));
       if (by == 0) throw Error("nothing is divisible by 0");
       return by == -1 || RequireInteger(value) % by == 0;
     }},
    {"equalto", [](const Value& a, Arguments& b) { return a.Equals(b.Require(0, "other")); }},
    {"even", [](const Value& value, Arguments&) { return RequireInteger(value) % 2 == 0; }},
    {"false", [](const Value& value, Arguments&) { return value.Is<bool>() && !value.Truth(); }},
    {"float", IsOneOf<double>},
    {"ge",
     [](const Value& a, Arguments& arguments) {
       const Value b = arguments.Require(0, "other");
       return b.LessThan(a) || a.Equals(b);
     }},
    {"greaterthan", [](const Value& a, Arguments& b) { return b.Require(0, "other").LessThan(a); }},
    {"in", [](const Value& value, Arguments& in) { return in.Require(0, "seq").Contains(value); }},
    {"integer", IsOneOf<int64_t>},
    {"iterable", IsOneOf<Undefined, MarkedText, List, Dict, Generator>},
    {"le",
     [](const Value& a, Arguments& arguments) {
       const Value b = arguments.Require(0, "other");
       return a.LessThan(b) || a.Equals(b);
     }},
    {"lessthan", [](const Value& a, Arguments& b) { return a.LessThan(b.Require(0, "other")); }},
    {"lower", [](const Value& value, Arguments&) { return IsCased(value.Str().Bytes(), false); }},
    {"mapping", IsOneOf<Dict>},
    {"ne", [](const Value& a, Arguments& b) { return !a.Equals(b.Require(0, "other")); }},
    {"none", IsOneOf<None>},
    {"number", IsOneOf<bool, int64_t, double>},
    {"odd", [](const Value& value, Arguments&) { return RequireInteger(value) % 2 != 0; }},
    {"sameas",
     [](const Value& a, Arguments& arguments) {
       const Value b = arguments.Require(0, "other");
       return a.TypeName() == b.TypeName() && a.Equals(b);
     }},
    {"sequence", IsOneOf<Undefined, MarkedText, List, Dict>},
    {"string", IsOneOf<MarkedText>},
    {"true", [](const Value& value, Arguments&) { return value.Is<bool>() && value.Truth(); }},
    {"undefined", IsOneOf<Undefined>},
    {"upper", [](const Value& value, Arguments&) { return IsCased(value.Str().Bytes(), true); }}};

constexpr std::pair<std::string_view, std::string_view> kTestAliases[] = {
    {"==", "equalto"},     {"eq", "equalto"},  {"!=", "ne"},
    {"<", "lessthan"},     {"lt", "lessthan"}, {">", "greaterthan"},
    {"gt", "greaterthan"}, {"<=", "le"},       {">=", "ge"}};

Value Range(Context& context, Arguments& arguments) {
  const size_t count = arguments.positional.size();
  const int64_t first = RequireInteger(arguments.Require(0, "start"));
  const int64_t start = count > 1 ? first : 0;
  const int64_t stop = count > 1 ? RequireInteger(arguments.Require(1, "stop")) : first;
  const int64_t step = count > 2 ? RequireInteger(arguments.Require(2, "step")) : 1;
  arguments.Finish(3);
  if (step == 0) throw Error("the step of a range must not be 0");
  List list;
  for (__int128 i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (std::ssize(list.items) == kMaxRange)
      throw Error("a range has more than ", kMaxRange, " items");
    context.budget.Step();
    list.items.emplace_back(static_cast<int64_t>(i));
  }
  return list;
}

Dict DictOf(Arguments& arguments) {
  Dict dict;
  for (const Value& from : arguments.positional) {
    const auto* other = from.If<Dict>();
    if (other == nullptr) throw Error("only a dictionary can be copied here");
    for (const auto& [key, value] : other->items) dict.Put(key, value);
  }
  for (auto& [name, value] : arguments.named) dict.Put(MarkedText(name), std::move(value));
  return dict;
}

}  // namespace

Value ApplyFilter(Context& context, std::string_view name, const Value& input,
                  Arguments& arguments) {
  const auto* const found =
      std::ranges::find(kFilters, name, &std::pair<std::string_view, Filter>::first);
  if (found == std::end(kFilters)) {
    throw Error("the filter ", Quoted(name, 40), " is not supported; supported: ",
                Joined(kFilters, &std::pair<std::string_view, Filter>::first));
  }
  context.budget.Step();
  return found->second(context, input, arguments);
}

bool ApplyTest(Context& context, std::string_view name, const Value& input, Arguments& arguments) {
  for (const auto& [alias, whole] : kTestAliases) {
    if (name == alias) name = whole;
  }
  const auto* const found =
      std::ranges::find(kTests, name, &std::pair<std::string_view, Test>::first);
  if (found == std::end(kTests)) {
    throw Error("the test ", Quoted(name, 40), " is not supported; supported: ",
                Joined(kTests, &std::pair<std::string_view, Test>::first));
  }
  context.budget.Step();
  return found->second(input, arguments);
}

std::optional<Value> FindFunction(Context& context, std::string_view name) {
  const auto function = [&](auto call) {
    return Callable{std::string(name), std::function<Value(Arguments&)>(std::move(call))};
  };
  if (name == "range") {
    return function([&context](Arguments& arguments) { return Range(context, arguments); });
  }
  if (name == "dict")
    return function([](Arguments& arguments) -> Value { return DictOf(arguments); });
  if (name == "namespace") {
    return function([](Arguments& arguments) -> Value { return Namespace{DictOf(arguments)}; });
  }
  if (name == "raise_exception") {
    return function([](Arguments& arguments) -> Value {
      throw Raised(arguments.Require(0, "message").Str().Bytes());
    });
  }
  if (name == "strftime_now") {
    return function([&context](Arguments& arguments) -> Value {
      const std::string format = arguments.Require(0, "format").Text().Bytes();
      arguments.Finish(1);
      char text[256];
      return std::string(text, std::strftime(text, sizeof(text), format.c_str(), &context.now));
    });
  }
  return std::nullopt;
}

}  // namespace tokline::jinja
