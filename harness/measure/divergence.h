// Measures how far a prompt with shifted spans diverges from the exact answer: both runs decode
// along the exact answer, and their distributions are compared token by token.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/scheduler/request.h"

namespace tokline {

struct Divergence {
  // the greedy answer without shifts; ends with a stop id or at max_new_tokens
  std::vector<int32_t> exact;
  std::vector<int32_t> shifted;  // the greedy answer with shifts
  std::vector<double> kl;        // per token of `exact`: KL(exact || shifted) in nats
  // tokens of `exact` that are the most likely ones in the shifted run too
  int64_t same_top = 0;
  int64_t prompt_tokens = 0;
  int64_t shifted_tokens = 0;  // those of them that were copied instead of computed
  int64_t source_tokens = 0;   // computed once, to be copied from then on
  bool interrupted = false;    // if true, nothing above is valid

  bool SameAnswer() const { return exact == shifted; }
};

struct KlSummary {
  double mean = 0;
  double p90 = 0;  // nearest rank
  double max = 0;
};
// Needs at least one value; if one is NaN, all three results are NaN.
KlSummary SummarizeKl(std::span<const double> kl);

// Returns the sum of p (ln p - ln q) over two rows of logits of equal length, where p and q are
// their softmax. Computed in double; exactly 0 for equal rows.
double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits);

// Uses the request's prompt, shifted spans, stop_ids and max_new_tokens, and decodes greedily. The
// decoder must reuse chunks and have no other sequences. Throws as Decoder::AddSequence does.
Divergence MeasureDivergence(Decoder& decoder, const Request& request,
                             const std::atomic<bool>* interrupted = nullptr);

}  // namespace tokline
