// Text from a file, made fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace tokline {

// In double quotes, control characters and bytes outside ASCII as \xNN, cut after `max_chars`.
std::string Quoted(std::string_view text, size_t max_chars = 120);

// "[2, 3]"; "[]" for a scalar.
template <typename Range>
std::string ListText(const Range& values) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(value);
  }
  return text + "]";
}

}  // namespace tokline
