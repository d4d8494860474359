// Compares what launches wrote with what the reference says they should have.
#pragma once

#include <cstdint>
#include <string>

#include "benches/bench_case.h"

namespace tokline::bench {

struct Comparison {
  double max_error_over_bound = 0;  // kWrong where no bound is defined: NaN, or inexact bits
  std::string first_failure;        // "" where every element is within its bound
};
inline constexpr double kWrong = 1e9;

// Checks a sample of the outputs in buffer set `copy`. The inputs of `store` were filled with
// `fill_seed`; the host makes those that the sample needs from it once more.
Comparison CompareWithReference(const BenchCase& whole, const TensorStore& store, int copy,
                                uint64_t fill_seed, uint64_t sample_seed);

}  // namespace tokline::bench
