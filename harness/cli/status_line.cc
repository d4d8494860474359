// Writes status lines, redraws the progress line in place, and rounds the numbers in both.
#include "harness/cli/status_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "harness/platform/printable.h"
#include "harness/platform/standard_streams.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Rounds to three significant digits, or to an integer if that has more.
std::string Rounded(double value) {
  char text[48];
  std::snprintf(text, sizeof(text), value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

}  // namespace

void PrintStatus(std::string_view line) {
  const bool dim = ::isatty(STDERR_FILENO) != 0 && !NoColor();
  const std::string shown = Printable(line);  // it may contain names of files
  const std::string text = dim ? StrCat("\x1b[2m", shown, "\x1b[0m\n") : StrCat(shown, "\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void ProgressLine::Show(int64_t computed, int64_t all, std::string_view what) {
  constexpr double kOftenS = 0.1;
  const auto now = Clock::now();
  const bool first = !begin_;
  if (first) {
    begin_ = now;
    before_ = computed;
  }
  const double seconds = SecondsBetween(*begin_, now);
  const bool too_soon =
      first ? computed > 0 : seconds < 1 || SecondsBetween(newest_, now) < kOftenS;
  if (too_soon || ::isatty(STDERR_FILENO) == 0) return;
  newest_ = now;
  std::string text =
      StrCat("\r\x1b[K[computed ", Grouped(computed), " of ", Grouped(all), " ", what);
  if (computed > before_) {
    const double left = seconds * static_cast<double>(std::max<int64_t>(0, all - computed)) /
                        static_cast<double>(computed - before_);
    const bool minutes = left > 120;
    text += StrCat(", about ", Grouped(std::llround(std::ceil(minutes ? left / 60 : left))),
                   minutes ? " min" : " s", " left");
  }
  text += "]";
  std::fwrite(text.data(), 1, text.size(), stderr);
  shown_ = true;
}

std::function<void(int64_t)> ProgressLine::Steps(Device device, int64_t all, std::string what) {
  if (device != Device::kCpu) return {};
  Clear();
  Show(0, all, what);
  return [this, all, what = std::move(what), computed = int64_t{0}](int64_t tokens) mutable {
    Show(computed += tokens, all, what);
  };
}

void ProgressLine::Clear() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
  begin_.reset();
}

std::string Tokens(int64_t number) {
  return StrCat(Grouped(number), number == 1 ? " token" : " tokens");
}

std::string BytesText(int64_t bytes) {
  const bool large = std::abs(bytes) >= 1 << 20;
  const double units = static_cast<double>(bytes) / (large ? 1 << 20 : 1 << 10);
  const int64_t tenths = std::llround(10 * std::abs(units));
  return StrCat(bytes < 0 ? "-" : "", Grouped(tenths / 10), ".", tenths % 10,
                large ? " MiB" : " KiB");
}

std::string Milliseconds(double seconds) { return Rounded(1e3 * seconds) + " ms"; }

std::string PerSecond(double rate) { return rate > 0 ? Rounded(rate) : "-"; }

}  // namespace tokline
