// Measures one row: a case on its buffers is verified, timed, and audited while it is timed.
//
// An audit refills all inputs, poisons all outputs and zeroes the workspaces, replays one launch on
// each buffer set, timed separately, and compares a random set with the reference. Audits take
// place at random points among the samples and after the last one. The outputs that the timed
// launches wrote since the previous audit are compared, too, so that these launches differ from an
// audit's only in their number.
#pragma once

#include <memory>
#include <random>

#include "benches/execution.h"
#include "harness/measure/stopping_rule.h"
#include "harness/record/record.h"

namespace tokline::bench {

// A case and its memory, which its plain and its dependent row share.
struct PreparedCase {
  PreparedCase(std::unique_ptr<BenchCase> made, const Execution& execution);

  std::unique_ptr<BenchCase> bench_case;
  Cost cost;
  Placement placement;
  TensorStore store;
};

struct RowOptions {
  bool dependent = false;
  bool verify_only = false;  // nothing is timed
  StoppingRule rule{};
  double slowdown_percent = 0;  // added to every sample, to test the tools
};

// Fills in everything that is measured. `m.trouble.failure` says in words why the row is refused.
// If the row is right and above its limit, the peaks in `m.limits` are measured again.
void MeasureRow(PreparedCase& prepared, const Execution& execution, const RowOptions& options,
                std::mt19937_64& rng, KernelMeasurement& m);

}  // namespace tokline::bench
