// What a command says beside its output: lines on standard error; and figures as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tokline {

// Dim on a terminal that may have colours.
void PrintStatus(std::string_view line);

std::string Grouped(int64_t number);                   // "1,234", from 0
std::string BytesText(int64_t bytes);                  // "1,234.5 MiB"; less than one in KiB
std::string Milliseconds(double seconds);              // "8.4 ms", "120 ms"
std::string PerSecond(int64_t count, double seconds);  // "41.2"; "-" where no time has passed

}  // namespace tokline
