// What `tokline bench --rates` prints: a line for each request rate, and the best of them.
#pragma once

#include <span>
#include <string>

#include "harness/record/record.h"

namespace tokline {

inline constexpr char kRateHeader[] =
    "                            first token, ms   between tokens, ms\n"
    "rate/s  done/s output tok/s      p50      p99      p50      p99 goodput/s    met\n";

// "0.5", or "inf" if all requests arrive at once.
std::string RateText(double rate);

// The line of a row, which may be refused.
std::string RateLine(double rate, const WorkloadMeasurement& measurement);

// Says at which rate the most requests per second met the bound; "" if there is no bound or all
// rows were refused. The rates are those of the measurements.
std::string BestRate(std::span<const double> rates,
                     std::span<const WorkloadMeasurement> measurements);

}  // namespace tokline
