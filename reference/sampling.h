// CPU reference of sampling.
#pragma once

#include <vector>

#include "kernels/sampling/sampling.h"

namespace tokline {

// Takes host pointers; needs no workspace. Throws InvalidArgument, also for a row's rule.
void SamplingReference(const SamplingParams& params);

// The probability of each token of a row of `vocab_size` logits; it is 0 for tokens that top-k and
// top-p drop. A greedy rule, and a row of only -inf, give one token probability 1.
std::vector<double> TokenProbabilities(const float* logits, int64_t vocab_size,
                                       const SamplingRule& rule);

// The draw in [0, 1) that picks the first token whose cumulative probability exceeds it.
double UniformDraw(const SamplingRule& rule);

}  // namespace tokline
