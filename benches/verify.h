// Compares the outputs of launches with those of the reference.
#pragma once

#include <cstdint>
#include <string>

#include "benches/bench_case.h"
#include "tokline_rules.h"

namespace tokline::bench {

struct Comparison {
  // of elements and, where it is too large, of a row's root mean square. kWrong if no bound is
  // defined: NaN, or bits that differ where they must be equal
  double max_error_over_bound = 0;
  std::string first_failure;  // "" if every element is within its bound
};

// The reference's results for a sample of the outputs in buffer set `copy`, whose inputs were
// filled with `fill_seed`; the host generates the needed inputs again. The reference runs once; the
// outputs of launches can then be compared any number of times.
class ExpectedSample {
 public:
  ExpectedSample(const BenchCase& whole, int copy, uint64_t fill_seed, uint64_t sample_seed);
  Comparison CompareWith(const TensorStore& store) const;

 private:
  int copy_;
  uint64_t fill_seed_;
  SampledCase sample_;
  TensorStore host_;
};

}  // namespace tokline::bench
