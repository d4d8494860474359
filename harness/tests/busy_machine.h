// For tests that bound a time from above: other programs may stretch any of them.
#pragma once

namespace tokline::testing {

// Whether `run` is true in one of ten runs. What is wrong in itself is so in all of them.
template <typename Run>
bool InOneOfTenRuns(const Run& run) {
  for (int i = 0; i < 10; ++i) {
    if (run()) return true;
  }
  return false;
}

}  // namespace tokline::testing
