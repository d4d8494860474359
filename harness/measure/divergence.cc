// Decodes the exact answer greedily, then feeds the same tokens to a run with shifted spans and
// compares the two distributions at each token.
#include "harness/measure/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "harness/engine/generate.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// The logarithm of the sum of exponentials.
double LogSum(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  Require(!p_logits.empty() && p_logits.size() == q_logits.size(), "rows of ", p_logits.size(),
          " and ", q_logits.size(), " logits; they must be equally long, and not empty");
  const double p_sum = LogSum(p_logits), q_sum = LogSum(q_logits);
  double kl = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double p = p_logits[i] - p_sum, q = q_logits[i] - q_sum;
    kl += std::exp(p) * (p - q);
  }
  return kl;
}

KlSummary SummarizeKl(std::span<const double> kl) {
  Require(!kl.empty(), "there are no tokens to summarize");
  if (std::ranges::any_of(kl, [](double value) { return std::isnan(value); })) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    return {.mean = kNan, .p90 = kNan, .max = kNan};
  }
  const double max = *std::ranges::max_element(kl);
  return {.mean = std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size()),
          .p90 = PercentilesOf({kl.begin(), kl.end()})->p90.value_or(max),
          .max = max};
}

Divergence MeasureDivergence(Decoder& decoder, const Request& request,
                             const std::atomic<bool>* interrupted) {
  Divergence divergence{.exact = {},
                        .shifted = {},
                        .kl = {},
                        .prompt_tokens = static_cast<int64_t>(request.prompt.size())};
  GenerateOptions options{.max_new_tokens = request.max_new_tokens,
                          .stop_ids = request.stop_ids,
                          .want_logits = true,
                          .interrupted = interrupted};
  const GenerateResult exact = Generate(decoder, request.prompt, options);
  options.shifted = request.shifted;
  options.shifted_after = request.shifted_after;

  const SchedulerCounts before = decoder.Schedule().Counts();
  GenerateOptions forced = options;
  forced.stop_ids.clear();
  forced.max_new_tokens = static_cast<int64_t>(exact.tokens.size());
  forced.force_ids = exact.tokens;
  const bool ended = exact.interrupted || exact.tokens.empty();
  GenerateResult shifted = ended ? GenerateResult{} : Generate(decoder, request.prompt, forced);
  divergence.interrupted = ended || shifted.interrupted;
  if (divergence.interrupted) return divergence;
  const SchedulerCounts& after = decoder.Schedule().Counts();
  divergence.shifted_tokens = after.shifted_tokens - before.shifted_tokens;
  divergence.source_tokens = after.source_tokens - before.source_tokens;

  for (size_t i = 0; i < exact.tokens.size(); ++i) {
    divergence.kl.push_back(KlDivergence(exact.logits[i], shifted.logits[i]));
    divergence.same_top += shifted.tokens[i] == exact.tokens[i];
  }
  divergence.exact = exact.tokens;
  divergence.shifted = std::move(shifted.tokens);
  if (!divergence.SameAnswer()) {  // the shifted run needs its own greedy answer
    options.want_logits = false;
    GenerateResult free = Generate(decoder, request.prompt, options);
    divergence.interrupted = free.interrupted;
    divergence.shifted = std::move(free.tokens);
  }
  return divergence;
}

}  // namespace tokline
