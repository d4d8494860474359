// The flags of commands that sample tokens.
#pragma once

#include <vector>

#include "harness/platform/flags.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

// Adds --temperature, --top-k, --top-p and --seed, which set `rule`. It must outlive the flags.
void AddSamplingFlags(SamplingRule& rule, std::vector<Flag>& flags);

}  // namespace tokline
