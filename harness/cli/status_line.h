// Status lines on standard error, and numbers formatted for people.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "harness/engine/backend.h"
#include "harness/platform/clock.h"

namespace tokline {

// Prints the line to standard error, dimmed on a terminal that may have colours.
void PrintStatus(std::string_view line);

// A line on standard error that shows the progress of a run and, once a second has passed, roughly
// how long it will still take. It appears only on a terminal.
class ProgressLine {
 public:
  ProgressLine() = default;
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Call it after each step, with the number computed so far and the total number to compute.
  void Show(int64_t computed, int64_t all, std::string_view what = "prompt tokens");
  // Returns a function that takes the number of tokens of each step of a run on this device. It
  // shows progress only on the CPU: on a device, whose speed is measured, the host has no time for
  // it.
  std::function<void(int64_t)> Steps(Device device, int64_t all, std::string what);
  // Removes the line. The next call of Show() begins another run.
  void Clear();

 private:
  std::optional<Clock::time_point> begin_;  // of the first Show()
  Clock::time_point newest_;                // when the line was written
  int64_t before_ = 0;                      // computed by the first Show()
  bool shown_ = false;
};

std::string Tokens(int64_t number);        // "1 token", "1,234 tokens"
std::string BytesText(int64_t bytes);      // "1,234.5 MiB"; KiB if less than 1 MiB
std::string Milliseconds(double seconds);  // "8.4 ms", "120 ms"
std::string PerSecond(double rate);        // "41.2"; "-" for 0, which stands for no rate

}  // namespace tokline
