// Validates UTF-8 and replaces faults as Python does: a fault covers the longest valid prefix of a
// code point, or one byte if there is none.
#include "harness/text/utf8.h"

#include <cstdint>
#include <cstring>

#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr std::string_view kBadStart = "invalid start byte";
constexpr std::string_view kBadContinuation = "invalid continuation byte";
constexpr std::string_view kEndOfData = "unexpected end of data";

// Whether `byte` may be byte `index` (counted from 1 after the lead) of a code point that starts
// with `lead` (Unicode, table 3-7).
bool Continues(unsigned char lead, size_t index, unsigned char byte) {
  unsigned char least = 0x80;
  unsigned char most = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) least = 0xA0;
    if (lead == 0xED) most = 0x9F;
    if (lead == 0xF0) least = 0x90;
    if (lead == 0xF4) most = 0x8F;
  }
  return least <= byte && byte <= most;
}

}  // namespace

bool Utf8Fault::Incomplete() const { return reason == kEndOfData; }

std::optional<Utf8Fault> FindUtf8Fault(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size()) {
    while (text.size() - at >= 8) {  // eight bytes of ASCII at a time
      uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    if (lead < 0xC2 || lead > 0xF4) return Utf8Fault{at, 1, kBadStart};
    const size_t length = Utf8Length(text[at]);
    for (size_t i = 1; i < length; ++i) {
      if (at + i == text.size()) return Utf8Fault{at, i, kEndOfData};
      if (!Continues(lead, i, static_cast<unsigned char>(text[at + i]))) {
        return Utf8Fault{at, i, kBadContinuation};
      }
    }
    at += length;
  }
  return std::nullopt;
}

std::string ReplaceUtf8Faults(std::string_view text) {
  std::string replaced;
  size_t done = 0;
  while (const std::optional<Utf8Fault> fault = FindUtf8Fault(text, done)) {
    replaced.append(text, done, fault->offset - done).append(kReplacementCharacter);
    done = fault->offset + fault->bytes;
  }
  return replaced.append(text.substr(done));
}

std::string FaultText(std::string_view text, const Utf8Fault& fault) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(text[fault.offset]);
  return StrCat("byte 0x", kHex[byte >> 4], kHex[byte & 15], " at offset ", fault.offset, ": ",
                fault.reason);
}

void RequireUtf8(std::string_view text, std::string_view what) {
  const std::optional<Utf8Fault> fault = FindUtf8Fault(text);
  if (fault) throw InvalidArgument(StrCat(what, " is not valid UTF-8: ", FaultText(text, *fault)));
}

char32_t DecodeUtf8(std::string_view code_point) {
  const auto lead = static_cast<unsigned char>(code_point[0]);
  if (lead < 0x80) return lead;
  char32_t value = lead & (0xFF >> (code_point.size() + 1));
  for (const char c : code_point.substr(1)) {
    value = value << 6 | (static_cast<unsigned char>(c) & 0x3F);
  }
  return value;
}

void AppendUtf8(char32_t code_point, std::string& text) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  } else if (code_point < 0x10000) {
    text += {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  } else {
    text += {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
  }
}

size_t CountUtf8(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

size_t LastCodePoint(std::string_view text) {
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace tokline
