// Reads text from a file or from standard input.
#pragma once

#include <string>

namespace tokline {

// Returns the whole text of a file, or of standard input for "-", without one newline at its end.
// Throws RuntimeFailure, with the name and the reason, if it cannot be read, has more than 64 MiB,
// or is not UTF-8.
std::string ReadText(const std::string& file);

}  // namespace tokline
