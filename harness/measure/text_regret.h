// Whether the model would generate a text, judged by logits that were computed in another way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace tokline {

// Returns how much less likely the tokens of a text are than they should be, averaged over the
// tokens. `logits[i]`, of size vocab_size, is the row from which token i should have been drawn.
// - For greedy texts: (the largest logit - the token's) / (the largest - the mean). This is 0 if
//   each token is the most likely one, about 1 for tokens drawn blindly, and NaN if a row is
//   constant or contains NaN.
// - For tokens drawn with a temperature by `rules[i]`, offset included: how far the random number
//   in [0, 1) lies outside the token's part of the cumulative probabilities. This is 0 if these
//   logits yield the same token, about 1/3 for tokens drawn blindly, and NaN if a row contains NaN.
// Without `rules` all tokens are greedy. Throws InvalidArgument if there are no tokens, if the
// numbers of rows, tokens and rules differ, or if a token lies outside its row.
double MeanRegret(std::span<const std::vector<float>> logits, std::span<const int32_t> tokens,
                  std::span<const SamplingRule> rules = {});

}  // namespace tokline
