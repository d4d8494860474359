// The command line of a bench program.
#pragma once

#include <string>
#include <vector>

#include "benches/result_table.h"
#include "harness/measure/stopping_rule.h"
#include "kernels/common/dtype.h"

namespace tokline::bench {

struct Options {
  std::string device = "auto";    // "auto", "cpu" or "cuda"
  int gpu = 0;                    // its number, for "cuda"
  std::string shapes;             // a file; "": the default shapes
  std::vector<std::string> axes;  // "KEY=VALUES", instead of shapes
  int64_t sweep = 0;              // shapes to draw instead; 0: none
  uint64_t seed = 0;              // of the sweep
  std::string record;             // a file; "": none
  DType dtype = DType::kBf16;
  StoppingRule rule{};
  std::string peaks;            // a record file whose peaks are reused; "": they are measured
  double slowdown_percent = 0;  // injected into every row
  bool verify_only = false;
  TableFormat format = TableFormat::kText;
  bool help = false;
  std::vector<std::string> of_google_benchmark;  // the arguments for it
  std::string benchmark_out;                     // one of them: a file; "": none
};

// Accepts --flag VALUE and --flag=VALUE. Throws InvalidArgument that names the flag, its value and
// what is allowed.
Options ParseOptions(std::vector<std::string> args);

// Help on the flags above, for a program of this name and axes.
std::string OptionsHelp(const std::string& program, const std::string& axes);

}  // namespace tokline::bench
