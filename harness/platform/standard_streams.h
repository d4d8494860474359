// Prepares the standard streams and writes to standard output.
#pragma once

#include <string_view>

namespace tokline {

// Every program calls this first. A standard stream that was closed at the start (`>&-`) becomes
// /dev/null opened for reading; otherwise the first file that is opened would take its descriptor.
// Such an input is empty and such an output fails. SIGPIPE is ignored, so that writing to a closed
// pipe is a write error, like a full disk, instead of ending the process. Throws RuntimeFailure if
// /dev/null cannot be opened.
void PrepareStandardStreams();

// Whether the user wants no colours on a terminal: NO_COLOR is set and not empty.
bool NoColor();

// Writes to standard output and flushes it. Throws RuntimeFailure on failure.
void Print(std::string_view text);

}  // namespace tokline
