#include "harness/measure/text_regret.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/common/error.h"
#include "reference/sampling.h"

namespace tokline {
namespace {

// A NaN anywhere makes the mean NaN and with it the regret.
double GreedyRegret(const std::vector<float>& logits, int32_t token) {
  const double largest = *std::ranges::max_element(logits);
  const double mean =
      std::accumulate(logits.begin(), logits.end(), 0.0) / static_cast<double>(logits.size());
  return (largest - logits[static_cast<size_t>(token)]) / (largest - mean);
}

double DrawRegret(const std::vector<float>& logits, int32_t token, const SamplingRule& rule) {
  if (std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const std::vector<double> probabilities =
      TokenProbabilities(logits.data(), static_cast<int64_t>(logits.size()), rule);
  const auto at = probabilities.begin() + token;
  const double low = std::accumulate(probabilities.begin(), at, 0.0);
  const double draw = UniformDraw(rule);
  return std::max({0.0, low - draw, draw - (low + *at)});
}

}  // namespace

double MeanRegret(std::span<const std::vector<float>> logits, std::span<const int32_t> tokens,
                  std::span<const SamplingRule> rules) {
  Require(!tokens.empty() && logits.size() == tokens.size(), tokens.size(), " tokens and ",
          logits.size(), " rows of logits; there must be one row per token, and at least one");
  Require(rules.empty() || rules.size() == tokens.size(), tokens.size(), " tokens and ",
          rules.size(), " sampling rules; there must be one per token, or none");
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float>& row = logits[i];
    const auto vocab_size = static_cast<int64_t>(row.size());
    Require(tokens[i] >= 0 && tokens[i] < vocab_size, "token ", tokens[i],
            " in a row of logits for ids 0 to ", vocab_size - 1);
    const bool greedy = rules.empty() || rules[i].temperature == 0;
    sum += greedy ? GreedyRegret(row, tokens[i]) : DrawRegret(row, tokens[i], rules[i]);
  }
  return sum / static_cast<double>(tokens.size());
}

}  // namespace tokline
