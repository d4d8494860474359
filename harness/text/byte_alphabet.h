// GPT-2's byte alphabet, which maps each byte to a printable character. The vocabularies of
// byte-level tokenizers are written in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tokline {

// The character of a byte, as UTF-8.
std::string_view ByteCharacter(unsigned char byte);

// Returns the bytes that `text` spells, or nothing if it has a character outside the alphabet.
std::optional<std::string> SpelledBytes(std::string_view text);

}  // namespace tokline
