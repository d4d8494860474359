// Status lines on standard error, and numbers formatted for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tokline {

// Prints the line to standard error, dimmed on a terminal that may have colours.
void PrintStatus(std::string_view line);

std::string Grouped(int64_t number);                   // "1,234"; `number` must not be negative
std::string BytesText(int64_t bytes);                  // "1,234.5 MiB"; KiB if less than 1 MiB
std::string Milliseconds(double seconds);              // "8.4 ms", "120 ms"
std::string PerSecond(int64_t count, double seconds);  // "41.2"; "-" if no time has passed

}  // namespace tokline
