// Whether a text is one that the model would write, judged by logits of another way to compute it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tokline {

// How much less likely the tokens of a greedy text are than the likeliest. `logits[i]`,
// [vocab_size], are what token i might have been drawn from; the result is the mean over the tokens
// of (the largest logit - the token's) / (the largest - the mean): 0 where each token is the
// likeliest, about 1 for tokens drawn blindly, NaN where a row is NaN or constant. Throws
// InvalidArgument for no tokens, for other counts of rows and tokens, and for a token that no row
// has.
double MeanRegret(std::span<const std::vector<float>> logits, std::span<const int32_t> tokens);

}  // namespace tokline
