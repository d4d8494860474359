// A value inside a JSON file that remembers the file and its path for error messages.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/error.h"

namespace tokline {

class JsonNode {
 public:
  // `value` must outlive the node and everything read from it.
  JsonNode(const nlohmann::json& value, std::string file, std::string path = "");

  const nlohmann::json& Value() const { return *value_; }

  // Looks up a key of an object. A key whose value is null counts as missing.
  std::optional<JsonNode> Find(std::string_view key) const;
  JsonNode Member(std::string_view key) const;
  void AllowKeys(std::initializer_list<std::string_view> keys) const;
  // Refuses the node unless the key is missing or null. `why` says what null means.
  void RequireNull(std::string_view key, std::string_view why) const;

  std::vector<JsonNode> Items(size_t most) const;  // for a list
  const std::string& Text() const;                 // for a string; valid UTF-8
  bool Flag() const;
  int64_t Integer(int64_t least, int64_t most) const;

  const std::string& TextOf(std::string_view key) const { return Member(key).Text(); }
  bool FlagOf(std::string_view key, bool if_missing) const;
  std::optional<int64_t> FindInteger(std::string_view key, int64_t least, int64_t most) const;
  std::optional<double> FindPositive(std::string_view key) const;  // a finite number above 0

  std::string ValueText() const;  // shortened, for messages

  // Throws RuntimeFailure with the file, the path, the (shortened) value and the message.
  template <typename... Parts>
  [[noreturn]] void Refuse(const Parts&... allowed) const {
    throw RuntimeFailure(
        StrCat(Where(), path_.empty() ? ": it is " : " is ", ValueText(), "; ", allowed...));
  }
  // Like Refuse, without the value.
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... message) const {
    throw RuntimeFailure(StrCat(Where(), ": ", message...));
  }

 private:
  std::string Where() const;
  void RequireObject() const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;  // such as "model.vocab" or "added_tokens[3].id"; empty for the whole file
};

}  // namespace tokline
