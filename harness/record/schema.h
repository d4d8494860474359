// Implements the part of JSON Schema (2020-12) that record.schema.json uses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tokline {

using Json = nlohmann::ordered_json;

class Schema {
 public:
  // Throws InvalidArgument with the name of a keyword that is not implemented.
  explicit Schema(std::string_view text);

  // Throws InvalidArgument that names the field below `where`, its value and what is allowed.
  void Validate(const Json& value, const std::string& where) const;

  const Json& Root() const { return root_; }

 private:
  Json root_;
};

// The schema of records, which is built into the program.
const Schema& RecordSchema();

// The beginning of a value, for use in a message.
std::string Brief(const Json& value);

// A value on one line of a file. An argument or a path may not be valid UTF-8: such bytes are
// replaced.
std::string JsonLine(const Json& value);

}  // namespace tokline
