#include "harness/platform/printable.h"

namespace tokline {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      printable += c;
    } else {
      printable += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return printable;
}

std::string Quoted(std::string_view text, size_t max_chars) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, max_chars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += c;
    } else {
      quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  quoted += text.size() > max_chars ? "\"..." : "\"";
  return quoted;
}

std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

}  // namespace tokline
