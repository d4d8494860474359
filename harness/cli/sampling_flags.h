// The flags of commands that draw tokens.
#pragma once

#include <vector>

#include "harness/cli/flags.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

// --temperature, --top-k, --top-p and --seed, into `rule`, which outlives the flags.
void AddSamplingFlags(SamplingRule& rule, std::vector<Flag>& flags);

}  // namespace tokline
