#include "harness/text/byte_alphabet.h"

#include <array>

#include "harness/text/utf8.h"

namespace tokline {
namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 512> bytes;  // indexed by code point; -1 if not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;  // the character of the next byte that is not printable
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      const char32_t code_point = prints ? static_cast<char32_t>(byte) : next++;
      AppendUtf8(code_point, characters[static_cast<size_t>(byte)]);
      bytes[code_point] = byte;
    }
  }
};

const Alphabet& Get() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view ByteCharacter(unsigned char byte) { return Get().characters[byte]; }

std::optional<std::string> SpelledBytes(std::string_view text) {
  const Alphabet& alphabet = Get();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text[at]);
    const char32_t code_point = DecodeUtf8(text.substr(at, length));
    if (code_point >= alphabet.bytes.size() || alphabet.bytes[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet.bytes[code_point]);
    at += length;
  }
  return bytes;
}

}  // namespace tokline
