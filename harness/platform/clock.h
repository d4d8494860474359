// The host's monotonic clock, and elapsed times in seconds.
#pragma once

#include <chrono>

namespace tokline {

class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;
  using Source = time_point (*)();

  static time_point now() { return source_(); }
  // Replaces the clock by one that a test sets.
  static void SetSource(Source source) { source_ = source; }

 private:
  inline static Source source_ = std::chrono::steady_clock::now;
};

inline double SecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline double SecondsSince(Clock::time_point begin) { return SecondsBetween(begin, Clock::now()); }

}  // namespace tokline
