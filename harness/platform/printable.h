// Formats text and lists for one-line messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tokline {

// The text in double quotes, cut off after `max_chars` characters. Control characters and bytes
// outside ASCII become \xNN.
std::string Quoted(std::string_view text, size_t max_chars = 120);

// The text with control characters as \xNN, so that no name reaches a terminal as a command. Other
// bytes stay as they are.
std::string Printable(std::string_view text);

std::string Grouped(int64_t number);  // "1,234"; `number` must not be negative

// Joins the items of a range, or what `projection` makes of them, with commas.
template <typename Range, typename Projection = std::identity>
std::string Joined(const Range& range, const Projection& projection = {}) {
  std::string text;
  for (const auto& item : range) {
    if (!text.empty()) text += ", ";
    text += std::invoke(projection, item);
  }
  return text;
}

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
