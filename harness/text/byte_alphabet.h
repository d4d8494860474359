// GPT-2's byte alphabet: a printable character for each byte, in which the vocabularies of
// byte-level tokenizers are written.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tokline {

// The character of a byte, as UTF-8.
std::string_view ByteCharacter(unsigned char byte);

// The bytes that `text` spells; nothing if one of its characters is not of the alphabet.
std::optional<std::string> SpelledBytes(std::string_view text);

}  // namespace tokline
