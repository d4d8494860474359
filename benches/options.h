// The command line of a bench program, apart from Google Benchmark's own flags.
#pragma once

#include <string>
#include <vector>

#include "harness/measure/stopping_rule.h"
#include "kernels/common/dtype.h"

namespace tokline::bench {

struct Options {
  std::string device = "auto";  // "auto", "cpu" or "cuda"
  std::string shapes;           // a file; "": the default shapes
  std::string record;           // a file; "": none
  DType dtype = DType::kBf16;
  StoppingRule rule{};
  std::string peaks;            // a record file whose peaks are reused; "": they are measured
  double slowdown_percent = 0;  // injected into every row
  bool verify_only = false;
  bool help = false;
  std::vector<std::string> rest;  // arguments for Google Benchmark
};

// Accepts --flag VALUE and --flag=VALUE. Throws InvalidArgument that names the flag, its value and
// what is allowed. Arguments that begin with --benchmark_ or --v go to `rest`; all others are
// errors.
Options ParseOptions(const std::vector<std::string>& args);

// Help on the flags above, for a program of this name.
std::string OptionsHelp(const std::string& program);

}  // namespace tokline::bench
