// Whether a text is one that the model would write, judged by logits of another way to compute it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace tokline {

// How much less likely the tokens of a text are than they should be, in the mean over the tokens.
// `logits[i]`, [vocab_size], are what token i might have been drawn from.
// - Drawn greedily: (the largest logit - the token's) / (the largest - the mean): 0 where each
// token
//   is the likeliest, about 1 for tokens drawn blindly, NaN where a row is NaN or constant.
// - Drawn with a temperature by `rules[i]`, offset included: how far the draw, a number in [0, 1),
//   lies outside the token's part of the cumulative probabilities: 0 where these logits give the
//   token too, about 1/3 for tokens drawn blindly, NaN where a row has a NaN.
// Without `rules` all are greedy. Throws InvalidArgument for no tokens, for other counts of rows,
// tokens and rules, and for a token that no row has.
double MeanRegret(std::span<const std::vector<float>> logits, std::span<const int32_t> tokens,
                  std::span<const SamplingRule> rules = {});

}  // namespace tokline
