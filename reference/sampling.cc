// CPU reference of sampling: sorts the logits to apply top-k and top-p, then draws by cumulative
// probability.
#include "reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/sampling/philox.h"

namespace tokline {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

// NaN counts as -inf, +inf as the largest float.
double Sanitized(float logit) {
  return std::isnan(logit) ? kLowest : std::min(logit, std::numeric_limits<float>::max());
}

int64_t ArgMax(const float* logits, int64_t vocab_size) {
  int64_t best = 0;
  for (int64_t i = 1; i < vocab_size; ++i) {
    if (Sanitized(logits[i]) > Sanitized(logits[best])) best = i;
  }
  return best;
}

// Returns the smallest logit that top-k keeps.
double TopKThreshold(std::vector<double> logits, int32_t top_k) {
  if (top_k == 0 || top_k >= static_cast<int64_t>(logits.size())) return kLowest;
  std::nth_element(logits.begin(), logits.begin() + top_k - 1, logits.end(), std::greater<>());
  return logits[static_cast<size_t>(top_k) - 1];
}

// Returns the smallest logit that top-p keeps: summed in descending order, the masses down to it
// are the first to reach p of the total.
template <typename MassOf>
double TopPThreshold(std::vector<double> logits, const MassOf& mass_of, double total, float top_p) {
  if (top_p >= 1) return kLowest;
  std::erase_if(logits, [&](double logit) { return mass_of(logit) == 0; });
  std::sort(logits.begin(), logits.end(), std::greater<>());
  double reached = 0;
  for (const double logit : logits) {
    reached += mass_of(logit);
    if (reached >= top_p * total) return logit;
  }
  return kLowest;
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

std::vector<double> TokenProbabilities(const float* logits, int64_t vocab_size,
                                       const SamplingRule& rule) {
  Validate(rule);
  std::vector<double> probabilities(static_cast<size_t>(vocab_size));
  const int64_t best = ArgMax(logits, vocab_size);
  const double highest = Sanitized(logits[best]);
  if (rule.temperature == 0 || highest == kLowest) {
    probabilities[static_cast<size_t>(best)] = 1;
    return probabilities;
  }

  std::vector<double> values(static_cast<size_t>(vocab_size));
  std::transform(logits, logits + vocab_size, values.begin(), Sanitized);
  double lowest_kept = TopKThreshold(values, rule.top_k);
  const auto mass_of = [&](double logit) {
    return logit >= lowest_kept ? std::exp((logit - highest) / rule.temperature) : 0.0;
  };
  const auto weigh = [&] {
    std::transform(values.begin(), values.end(), probabilities.begin(), mass_of);
  };
  weigh();
  lowest_kept =
      std::max(lowest_kept, TopPThreshold(values, mass_of, Sum(probabilities), rule.top_p));
  weigh();
  const double total = Sum(probabilities);
  for (double& mass : probabilities) mass /= total;
  return probabilities;
}

double UniformDraw(const SamplingRule& rule) {
  // The 53 highest bits, so that the result stays below 1.
  return static_cast<double>(DrawBits(rule.seed, rule.offset) >> 11) * 0x1p-53;
}

void SamplingReference(const SamplingParams& params) {
  Validate(params);
  for (int64_t row = 0; row < params.num_rows; ++row) {
    const float* logits = params.logits + row * params.logits_stride;
    const SamplingRule& rule = params.rules[row];
    Validate(rule);
    int64_t token = ArgMax(logits, params.vocab_size);
    if (rule.temperature > 0) {
      const std::vector<double> probabilities = TokenProbabilities(logits, params.vocab_size, rule);
      const double draw = UniformDraw(rule);
      double cumulative = 0;
      for (int64_t i = 0; i < params.vocab_size; ++i) {
        const double probability = probabilities[static_cast<size_t>(i)];
        if (probability == 0) continue;
        token = i;  // stays the last token if rounding leaves the sum below the draw
        cumulative += probability;
        if (cumulative > draw) break;
      }
    }
    params.tokens[row] = static_cast<int32_t>(token);
  }
}

}  // namespace tokline
