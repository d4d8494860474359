#include "harness/cli/latency_text.h"

#include <cstdio>

namespace tokline {

std::string MillisecondsCell(std::optional<double> seconds) {
  if (!seconds) return "-";
  const double ms = 1e3 * *seconds;
  const int decimals = ms < 10 ? 3 : ms < 100 ? 2 : ms < 10'000 ? 1 : 0;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", decimals, ms);
  return text;
}

std::string LatencyCells(const std::optional<Percentiles>& seconds) {
  const Percentiles all = seconds.value_or(Percentiles{});
  const std::optional<double> median = seconds ? std::optional(all.median) : std::nullopt;
  char text[80];
  std::snprintf(text, sizeof(text), "%9s %9s %9s %8lld", MillisecondsCell(median).c_str(),
                MillisecondsCell(all.p90).c_str(), MillisecondsCell(all.p99).c_str(),
                static_cast<long long>(all.count));
  return text;
}

}  // namespace tokline
