// Picks the next token for each row of logits: greedy, or with temperature, top-k and top-p.
#pragma once

#include <cstdint>

#include "kernels/common/cost.h"
#include "kernels/common/launch_options.h"

namespace tokline {

// How one row is sampled.
struct SamplingRule {
  float temperature = 0;  // 0: greedy, with the lowest id among equal logits
  int32_t top_k = 0;      // keep the k largest logits and any that tie with the k-th; 0: keep all
  float top_p = 1;        // keep the fewest largest logits whose mass reaches p (at least one), and
                          // ties
  uint64_t seed = 0;
  uint64_t offset = 0;  // the token's position in its sequence. Only seed and offset determine the
                        // draw (Philox), so a row's token does not depend on its batch
};

// top_k is applied first, then top_p to what is left, as in Hugging Face. NaN logits count as -inf;
// a row of only -inf gives token 0. On CUDA no kernel that may still be running may write the
// rules: upload them before the step.
struct SamplingParams {
  int64_t num_rows = 0;
  int64_t vocab_size = 0;
  const float* logits = nullptr;        // [num_rows, vocab_size]
  int64_t logits_stride = 0;            // elements between rows
  const SamplingRule* rules = nullptr;  // [num_rows], host or device like logits
  // uint64 [num_rows, best_parts], or null: the largest logit of each part of a row with its id, as
  // linear's kHead leaves them (LinearParams::best). CUDA then reads nothing else of greedy rows;
  // the reference ignores it.
  const uint64_t* best = nullptr;
  int32_t best_parts = 0;
  int32_t* tokens = nullptr;    // [num_rows] out
  void* workspace = nullptr;    // CUDA, 256 B aligned
  int64_t workspace_bytes = 0;  // SamplingWorkspaceBytes
};

int64_t SamplingWorkspaceBytes(int64_t num_rows, int64_t vocab_size);
void Validate(const SamplingRule& rule);
void Validate(const SamplingParams& params);
Cost CostOf(const SamplingParams& params);
void Launch(const SamplingParams& params, const LaunchOptions& options);

}  // namespace tokline
