// Generates the continuation of one prompt.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "harness/engine/decoder.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

struct GenerateOptions {
  int64_t max_new_tokens = 16;
  SamplingRule rule = {};
  std::vector<int32_t> stop_ids = {};  // each of these ends the text, as its last token
  // Teacher forcing: token i is drawn as always, but force_ids[i] is what the model reads next.
  std::vector<int32_t> force_ids = {};
  // As in Request.
  std::vector<ShiftedSpan> shifted = {};
  int64_t shifted_after = 0;
  bool want_logits = false;
  // Called with each token of the result, in order. If it returns false, the token is the last.
  std::function<bool(int32_t)> on_token = {};
  const std::atomic<bool>* interrupted = nullptr;  // ends the text early once it is true
};

struct GenerateResult {
  std::vector<int32_t> tokens;             // as drawn
  std::vector<std::vector<float>> logits;  // from which each token was drawn, if wanted
  bool stopped = false;                    // ended by a stop id or by on_token
  bool interrupted = false;
  double prefill_s = 0;  // time until the first token
  double decode_s = 0;   // time for all other tokens
};

// Throws like Decoder::AddSequence. Use a decoder that has no other sequences: they would continue
// meanwhile, and their tokens would be lost.
GenerateResult Generate(Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options);

}  // namespace tokline
