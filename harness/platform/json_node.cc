// Typed access to the values of a JSON file. Each accessor refuses a value of another type or range
// and says where it is.
#include "harness/platform/json_node.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/platform/printable.h"

namespace tokline {

JsonNode::JsonNode(const nlohmann::json& value, std::string file, std::string path)
    : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

std::string JsonNode::Where() const { return path_.empty() ? file_ : StrCat(file_, ": ", path_); }

std::string JsonNode::ValueText() const {
  constexpr size_t kMaxShown = 64;
  if (value_->is_string()) return Quoted(value_->get_ref<const std::string&>());
  if (value_->is_structured() && value_->size() > kMaxShown) {
    return StrCat(value_->is_object() ? "an object of " : "a list of ", value_->size());
  }
  return value_->dump(-1, ' ', /*ensure_ascii=*/true).substr(0, 120);
}

void JsonNode::RequireObject() const {
  if (!value_->is_object()) Refuse("it must be an object");
}

std::optional<JsonNode> JsonNode::Find(std::string_view key) const {
  RequireObject();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, file_, path_.empty() ? std::string(key) : StrCat(path_, ".", key));
}

JsonNode JsonNode::Member(std::string_view key) const {
  std::optional<JsonNode> found = Find(key);
  if (!found) Fail(Quoted(key), " is missing");
  return *std::move(found);
}

void JsonNode::AllowKeys(std::initializer_list<std::string_view> keys) const {
  RequireObject();
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    Fail("the key ", Quoted(key), " is not known here; known: ", Joined(keys));
  }
}

void JsonNode::RequireNull(std::string_view key, std::string_view why) const {
  if (const std::optional<JsonNode> found = Find(key)) found->Refuse("it must be null: ", why);
}

std::vector<JsonNode> JsonNode::Items(size_t most) const {
  if (!value_->is_array()) Refuse("it must be a list");
  if (value_->size() > most) Refuse("at most ", most, " are allowed");
  std::vector<JsonNode> items;
  items.reserve(value_->size());
  for (const nlohmann::json& item : *value_) {
    items.emplace_back(item, file_, StrCat(path_, "[", items.size(), "]"));
  }
  return items;
}

const std::string& JsonNode::Text() const {
  if (!value_->is_string()) Refuse("it must be a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::Flag() const {
  if (!value_->is_boolean()) Refuse("it must be true or false");
  return value_->get<bool>();
}

int64_t JsonNode::Integer(int64_t least, int64_t most) const {
  // Unsigned values are compared as unsigned, so that 2^63 and above do not become negative.
  const bool fits =
      value_->is_number_integer() &&
      !(value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(most)) &&
      value_->get<int64_t>() >= least && value_->get<int64_t>() <= most;
  if (!fits) Refuse("it must be an integer from ", least, " to ", most);
  return value_->get<int64_t>();
}

bool JsonNode::FlagOf(std::string_view key, bool if_missing) const {
  const std::optional<JsonNode> found = Find(key);
  return found ? found->Flag() : if_missing;
}

std::optional<int64_t> JsonNode::FindInteger(std::string_view key, int64_t least,
                                             int64_t most) const {
  const std::optional<JsonNode> found = Find(key);
  return found ? std::optional(found->Integer(least, most)) : std::nullopt;
}

std::optional<double> JsonNode::FindPositive(std::string_view key) const {
  const std::optional<JsonNode> found = Find(key);
  if (!found) return std::nullopt;
  const double value = found->value_->is_number() ? found->value_->get<double>() : 0;
  if (!std::isfinite(value) || value <= 0) found->Refuse("it must be a finite number above 0");
  return value;
}

}  // namespace tokline
