// How `tokline bench` prints percentiles of latencies.
#pragma once

#include <optional>
#include <string>

#include "harness/measure/timing.h"

namespace tokline {

inline constexpr char kLatencyHeader[] = "      p50       p90       p99       of";
// Says what the "-" of a percentile means.
inline constexpr char kTooFew[] =
    "-: too few to say; p90 is stated of 10 and more, p99 of 100 and more\n";

// Seconds as milliseconds with at least three digits and without an exponent; "-" if there is no
// value.
std::string MillisecondsCell(std::optional<double> seconds);

// The percentiles in milliseconds and their number, below kLatencyHeader.
std::string LatencyCells(const std::optional<Percentiles>& seconds);

}  // namespace tokline
