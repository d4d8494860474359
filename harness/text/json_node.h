// A value inside a JSON file, with the file and its path for the messages of what reads it. Nothing
// is skipped: a key that the reader does not know is refused by name, for it may change what ids
// mean.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {

class JsonNode {
 public:
  // `value` outlives the node and what is read from it.
  JsonNode(const nlohmann::json& value, std::string file, std::string path = "");

  const nlohmann::json& Value() const { return *value_; }

  // Of an object. A key that is missing or null is not there.
  std::optional<JsonNode> Find(std::string_view key) const;
  JsonNode Member(std::string_view key) const;
  void AllowKeys(std::initializer_list<std::string_view> keys) const;
  // The value is null or missing, or the node is refused: `why` says what null means.
  void RequireNull(std::string_view key, std::string_view why) const;

  std::vector<JsonNode> Items(size_t most) const;  // of a list
  const std::string& Text() const;                 // of a string, valid UTF-8
  bool Flag() const;
  int64_t Integer(int64_t least, int64_t most) const;

  const std::string& TextOf(std::string_view key) const { return Member(key).Text(); }
  bool FlagOf(std::string_view key, bool if_missing) const;

  // Throws RuntimeFailure: file, path, value (shortened), then the message.
  template <typename... Parts>
  [[noreturn]] void Refuse(const Parts&... allowed) const {
    throw RuntimeFailure(StrCat(Where(), " is ", ValueText(), "; ", allowed...));
  }
  // As Refuse, without the value.
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... message) const {
    throw RuntimeFailure(StrCat(Where(), ": ", message...));
  }

 private:
  std::string Where() const;
  std::string ValueText() const;
  void RequireObject() const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;  // "model.vocab", "added_tokens[3].id"; empty: the whole file
};

}  // namespace tokline
