// Where the Unicode versions of Hugging Face tokenizers and of our libraries differ. The library
// (0.23) matches expressions with Unicode 16 and normalises with Unicode 9; PCRE2 10.42 has
// Unicode 14, utf8proc 2.8 has 15. Without these tables the ids of newer characters would differ.
// tokenizer_golden_test holds them against the library for every code point.
#pragma once

#include <string_view>

namespace tokline {

// The code points that joined a general category (L, M, N, P, S) with Unicode 15 and 16, as members
// of a PCRE2 class. Newer versions of PCRE2 know them already, which does no harm.
std::string_view NewerMembers(char category);

// The library's NFC takes this code point for an ordinary character: it is not reordered and
// composes with nothing.
bool NewerThanNfc(char32_t code_point);

}  // namespace tokline
