// How far a prompt with shifted spans leads away from the exact answer: both are decoded along the
// exact one, and their distributions compared token by token.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/scheduler/request.h"

namespace tokline {

struct Divergence {
  std::vector<int32_t> exact;    // the greedy answer without shifts; ends with a stop id or in full
  std::vector<int32_t> shifted;  // the greedy answer with them
  std::vector<double> kl;        // of each token of `exact`: KL(exact || shifted), nats
  int64_t same_top = 0;          // tokens of `exact` that the shifted run finds likeliest too
  int64_t prompt_tokens = 0;
  int64_t shifted_tokens = 0;  // of them, that were copied and not computed
  int64_t source_tokens = 0;   // computed once, to be copied from now on
  bool interrupted = false;    // nothing above counts

  bool SameAnswer() const { return exact == shifted; }
};

struct KlSummary {
  double mean = 0;
  double p90 = 0;  // nearest rank
  double max = 0;
};
// Of at least one value; a NaN among them makes all three NaN.
KlSummary SummarizeKl(std::span<const double> kl);

// Sum of p (ln p - ln q) over two rows of logits of one length, p and q being their softmax.
// Computed in double; exactly 0 for equal rows.
double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits);

// Of request.prompt, shifted spans, stop_ids and max_new_tokens; greedy. The decoder reuses chunks
// and has no other sequences. Throws as Decoder::AddSequence does.
Divergence MeasureDivergence(Decoder& decoder, const Request& request,
                             const std::atomic<bool>* interrupted = nullptr);

}  // namespace tokline
