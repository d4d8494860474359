// Differences between the Unicode versions of Hugging Face tokenizers and of our libraries. The
// Hugging Face library (0.23) matches expressions with Unicode 16 and normalizes with Unicode 9;
// PCRE2 10.42 has Unicode 14, and utf8proc 2.8 has Unicode 15. Without these tables, newer
// characters would get different ids. tokenizer_golden_test compares the results with the library
// for every code point.
#pragma once

#include <string>
#include <string_view>

namespace tokline {

// The code points that were added to a general category (L, Ll, Lm, Lo, Lt, Lu, M, N, Nd, Nl, No,
// P, S) in Unicode 15 and 16, as members of a PCRE2 character class. Newer versions of PCRE2
// already include them, which does no harm.
std::string NewerMembers(std::string_view category);

// Whether the library's NFC treats this code point as an ordinary character, which is not reordered
// and does not compose.
bool NewerThanNfc(char32_t code_point);

}  // namespace tokline
