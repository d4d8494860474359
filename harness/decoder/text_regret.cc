#include "harness/decoder/text_regret.h"

#include <algorithm>
#include <numeric>

#include "kernels/common/error.h"

namespace tokline {

double MeanRegret(std::span<const std::vector<float>> logits, std::span<const int32_t> tokens) {
  Require(!tokens.empty() && logits.size() == tokens.size(), tokens.size(), " tokens and ",
          logits.size(), " rows of logits; there must be one row a token, and at least one");
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float>& row = logits[i];
    const auto vocab_size = static_cast<int64_t>(row.size());
    Require(tokens[i] >= 0 && tokens[i] < vocab_size, "token ", tokens[i],
            " in a row of logits for ids 0 to ", vocab_size - 1);
    const double largest = *std::ranges::max_element(row);
    // A NaN anywhere makes the mean, and with it the regret, a NaN.
    const double mean =
        std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(vocab_size);
    sum += (largest - row[static_cast<size_t>(tokens[i])]) / (largest - mean);
  }
  return sum / static_cast<double>(tokens.size());
}

}  // namespace tokline
