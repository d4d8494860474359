// The streams that a program starts with, and writing to standard output.
#pragma once

#include <string_view>

namespace tokline {

// Called first by every program. What it was started without (`>&-`) becomes /dev/null opened for
// reading, lest the first file that is opened takes its place: input is empty, output is refused.
// Writing to a closed pipe becomes an error of write, like a full disk, in place of a signal.
// Throws RuntimeFailure if /dev/null cannot be opened.
void PrepareStandardStreams();

// Whether the user wants no colours on a terminal: NO_COLOR is set and not empty.
bool NoColor();

// Writes to standard output and flushes. Throws RuntimeFailure if it cannot.
void Print(std::string_view text);

}  // namespace tokline
