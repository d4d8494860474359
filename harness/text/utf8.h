// UTF-8 validation: finds invalid bytes, with the wording and offsets that Python reports, and
// replaces them by U+FFFD.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tokline {

enum class InvalidUtf8 {
  kRefuse,   // throw InvalidArgument with the offset, as bytes.decode("utf-8") raises
  kReplace,  // one U+FFFD per invalid part, as bytes.decode("utf-8", "replace")
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct Utf8Fault {
  size_t offset = 0;
  size_t bytes = 0;  // number of bytes that one U+FFFD replaces
  std::string_view reason;
  bool Incomplete() const;  // whether more bytes could complete the code point
};

// Returns the first fault at or after `from`, which must be the start of a code point.
std::optional<Utf8Fault> FindUtf8Fault(std::string_view text, size_t from = 0);

std::string ReplaceUtf8Faults(std::string_view text);

// What is wrong with a text, for messages: "byte 0xff at offset 2: invalid start byte".
std::string FaultText(std::string_view text, const Utf8Fault& fault);
// Throws InvalidArgument that names `what`, the offset, the byte and the reason.
void RequireUtf8(std::string_view text, std::string_view what);

// Number of bytes in the code point whose first byte is `lead`, in valid text.
constexpr size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

char32_t DecodeUtf8(std::string_view code_point);  // for exactly one valid code point
void AppendUtf8(char32_t code_point, std::string& text);
size_t CountUtf8(std::string_view text);      // number of code points in valid text
size_t LastCodePoint(std::string_view text);  // where it begins, in valid text that is not empty

bool IsWhiteSpace(char32_t code_point);  // the Unicode property White_Space

}  // namespace tokline
