// The host's monotonic clock, and elapsed times in seconds.
#pragma once

#include <chrono>

namespace tokline {

using Clock = std::chrono::steady_clock;

inline double SecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline double SecondsSince(Clock::time_point begin) { return SecondsBetween(begin, Clock::now()); }

}  // namespace tokline
