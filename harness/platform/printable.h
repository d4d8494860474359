// Makes text from a file fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace tokline {

// The text in double quotes, cut off after `max_chars` characters. Control characters and bytes
// outside ASCII become \xNN.
std::string Quoted(std::string_view text, size_t max_chars = 120);

// Formats a list such as a shape: "[2, 3]", or "[]" if it is empty (the shape of a scalar).
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
