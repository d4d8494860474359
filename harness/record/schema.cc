// Checks JSON values against a schema, keyword by keyword, and reports the first problem.
#include "harness/record/schema.h"

#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "kernels/common/error.h"

namespace tokline {
namespace {

struct Problem {
  std::string path;  // relative to the value that was checked: ".shape.name"
  std::string what;
};
using Found = std::optional<Problem>;

// Checks values against the schemas of one file.
class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  Found Check(const Json& schema, const Json& value) const;
  const Json& Target(const Json& reference) const {
    return root_.at(Json::json_pointer(reference.get<std::string>().substr(1)));
  }

 private:
  const Json& root_;
};

struct Arguments {
  const Checker& checker;
  const Json& rule;    // the keyword's value
  const Json& schema;  // the schema that contains the keyword
  const Json& value;
};

Found IsNot(const Json& value, const std::string& allowed) {
  return Problem{"", StrCat(" is ", Brief(value), "; it must be ", allowed)};
}

Found Below(const std::string& path, Found found) {
  if (found) found->path.insert(0, path);
  return found;
}

// NaN is written as null, because JSON has no NaN.
std::string TypeOf(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "null";
  return value.is_number_integer() ? "integer" : value.type_name();
}

Found CheckType(const Arguments& a) {
  static const std::map<std::string, std::string> kWords = {
      {"array", "a list"}, {"boolean", "true or false"}, {"integer", "a whole number"},
      {"null", "null"},    {"number", "a number"},       {"object", "an object"},
      {"string", "text"}};
  const std::string type = TypeOf(a.value);
  std::string allowed;
  for (const Json& each : a.rule.is_array() ? a.rule : Json::array({a.rule})) {
    if (each == type || (each == "number" && type == "integer")) return {};
    allowed += StrCat(allowed.empty() ? "" : " or ", kWords.at(each.get<std::string>()));
  }
  return IsNot(a.value, allowed);
}

Found CheckEnum(const Arguments& a) {
  std::string allowed;
  for (const Json& each : a.rule) {
    if (each == a.value) return {};
    const std::string text = each.is_string() ? each.get<std::string>() : each.dump();
    allowed += StrCat(allowed.empty() ? "one of " : ", ", text);
  }
  return IsNot(a.value, allowed);
}

Found CheckConst(const Arguments& a) {
  return a.rule == a.value ? Found() : IsNot(a.value, a.rule.dump());
}

// A bound on numbers; values of other types pass.
template <typename Holds>
Found CheckBound(const Arguments& a, Holds holds, const char* words) {
  const bool bound = TypeOf(a.value) == "integer" || TypeOf(a.value) == "number";
  if (!bound || holds(a.value.get<double>(), a.rule.get<double>())) return {};
  return IsNot(a.value, StrCat(words, a.rule.get<double>()));
}

// A bound on the size of strings, lists or objects.
Found CheckSize(const Arguments& a, const char* type, bool at_most, const char* of) {
  if (TypeOf(a.value) != type) return {};
  const size_t size =
      a.value.is_string() ? a.value.get_ref<const std::string&>().size() : a.value.size();
  const size_t bound = a.rule;
  if (at_most ? size <= bound : size >= bound) return {};
  return IsNot(a.value, StrCat("of ", at_most ? "at most " : "at least ", bound, " ", of,
                               ", not of ", size));
}

Found CheckPattern(const Arguments& a) {
  const std::string pattern = a.rule;
  if (!a.value.is_string() ||
      std::regex_search(a.value.get_ref<const std::string&>(), std::regex(pattern))) {
    return {};
  }
  return IsNot(a.value, "text that matches " + pattern);
}

Found CheckRequired(const Arguments& a) {
  if (!a.value.is_object()) return {};
  for (const Json& name : a.rule) {
    if (!a.value.contains(name)) {
      return Problem{"", StrCat(" has no field '", name.get<std::string>(), "'")};
    }
  }
  return {};
}

Found CheckProperties(const Arguments& a) {
  if (!a.value.is_object()) return {};
  for (const auto& [name, schema] : a.rule.items()) {
    const auto field = a.value.find(name);
    if (field == a.value.end()) continue;
    if (Found found = a.checker.Check(schema, *field)) return Below("." + name, found);
  }
  return {};
}

Found CheckAdditionalProperties(const Arguments& a) {
  if (!a.value.is_object()) return {};
  for (const auto& [name, field] : a.value.items()) {
    if (a.schema.contains("properties") && a.schema["properties"].contains(name)) continue;
    if (Found found = a.checker.Check(a.rule, field)) return Below("." + name, found);
  }
  return {};
}

Found CheckItems(const Arguments& a) {
  if (!a.value.is_array()) return {};
  for (size_t i = 0; i < a.value.size(); ++i) {
    if (Found found = a.checker.Check(a.rule, a.value[i])) return Below(StrCat("[", i, "]"), found);
  }
  return {};
}

Found CheckAllOf(const Arguments& a) {
  for (const Json& each : a.rule) {
    if (Found found = a.checker.Check(each, a.value)) return found;
  }
  return {};
}

Found CheckIf(const Arguments& a) {
  const char* branch = a.checker.Check(a.rule, a.value) ? "else" : "then";
  return a.schema.contains(branch) ? a.checker.Check(a.schema[branch], a.value) : Found();
}

Found CheckNothing(const Arguments&) { return {}; }

const std::map<std::string, Found (*)(const Arguments&)>& Keywords() {
  static const std::map<std::string, Found (*)(const Arguments&)> keywords = {
      {"$defs", CheckNothing},
      {"$ref",
       [](const Arguments& a) { return a.checker.Check(a.checker.Target(a.rule), a.value); }},
      {"$schema", CheckNothing},
      {"additionalProperties", CheckAdditionalProperties},
      {"allOf", CheckAllOf},
      {"const", CheckConst},
      {"description", CheckNothing},
      {"else", CheckNothing},
      {"enum", CheckEnum},
      {"exclusiveMinimum",
       [](const Arguments& a) { return CheckBound(a, std::greater<>(), "more than "); }},
      {"if", CheckIf},
      {"items", CheckItems},
      {"maxItems", [](const Arguments& a) { return CheckSize(a, "array", true, "items"); }},
      {"maximum",
       [](const Arguments& a) { return CheckBound(a, std::less_equal<>(), "at most "); }},
      {"minItems", [](const Arguments& a) { return CheckSize(a, "array", false, "items"); }},
      {"minLength", [](const Arguments& a) { return CheckSize(a, "string", false, "characters"); }},
      {"minProperties", [](const Arguments& a) { return CheckSize(a, "object", false, "fields"); }},
      {"minimum",
       [](const Arguments& a) { return CheckBound(a, std::greater_equal<>(), "at least "); }},
      {"pattern", CheckPattern},
      {"properties", CheckProperties},
      {"required", CheckRequired},
      {"then", CheckNothing},
      {"title", CheckNothing},
      {"type", CheckType},
      {"x-rules", CheckNothing}};
  return keywords;
}

Found Checker::Check(const Json& schema, const Json& value) const {
  if (schema.is_boolean()) return schema.get<bool>() ? Found() : IsNot(value, "absent");
  for (const auto& [keyword, rule] : schema.items()) {
    if (Found found = Keywords().at(keyword)({*this, rule, schema, value})) return found;
  }
  return {};
}

// Throws for a keyword that is not implemented or a reference without a target.
void RequireImplemented(const Checker& checker, const Json& schema) {
  static const std::set<std::string> kOfMany = {"$defs", "allOf", "properties"};
  static const std::set<std::string> kOfOne = {"additionalProperties", "else", "if", "items",
                                               "then"};
  if (schema.is_boolean()) return;
  for (const auto& [keyword, rule] : schema.items()) {
    Require(Keywords().contains(keyword), "the schema's keyword '", keyword,
            "' is not implemented");
    if (keyword == "$ref") checker.Target(rule);
    if (kOfOne.contains(keyword)) RequireImplemented(checker, rule);
    if (!kOfMany.contains(keyword)) continue;
    for (const Json& each : rule) RequireImplemented(checker, each);
  }
}

}  // namespace

std::string Brief(const Json& value) {
  constexpr size_t kLength = 60;
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kLength);
}

std::string JsonLine(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Schema::Schema(std::string_view text) : root_(Json::parse(text)) {
  RequireImplemented(Checker(root_), root_);
}

void Schema::Validate(const Json& value, const std::string& where) const {
  const Found found = Checker(root_).Check(root_, value);
  if (found) throw InvalidArgument(StrCat(where, found->path, found->what));
}

}  // namespace tokline
