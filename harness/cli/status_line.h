// Status lines on standard error, and numbers formatted for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "harness/platform/clock.h"

namespace tokline {

// Prints the line to standard error, dimmed on a terminal that may have colours.
void PrintStatus(std::string_view line);

// A line on standard error that says how far the prefill is. It appears on a terminal only, once
// the prefill takes longer than a second.
class PrefillLine {
 public:
  PrefillLine() = default;
  ~PrefillLine() { Clear(); }
  PrefillLine(const PrefillLine&) = delete;
  PrefillLine& operator=(const PrefillLine&) = delete;

  // Call it after each step of a prefill, with the tokens computed so far and those to compute.
  void Show(int64_t computed, int64_t all);
  // Removes the line. The next call of Show() begins another prefill.
  void Clear();

 private:
  std::optional<Clock::time_point> begin_;  // of the first Show()
  int64_t before_ = 0;                      // tokens computed by then
  bool shown_ = false;
};

std::string Tokens(int64_t number);        // "1 token", "1,234 tokens"
std::string BytesText(int64_t bytes);      // "1,234.5 MiB"; KiB if less than 1 MiB
std::string Milliseconds(double seconds);  // "8.4 ms", "120 ms"
std::string PerSecond(double rate);        // "41.2"; "-" for 0, which stands for no rate

}  // namespace tokline
