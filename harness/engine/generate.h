// One prompt to its continuation.
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
  std::vector<int32_t> stop_ids = {};  // a token of these ends the text and is its last
  // Teacher forcing: token i is drawn as always, but force_ids[i] is what the model reads next.
  std::vector<int32_t> force_ids = {};
  // Spans of the prompt that are copied; Request says how.
  std::vector<ShiftedSpan> shifted = {};
  int64_t shifted_after = 0;
  bool want_logits = false;
  // Called with each token of the result, in order; false makes it the last.
  std::function<bool(int32_t)> on_token = {};
  const std::atomic<bool>* interrupted = nullptr;  // ends the text early when it becomes true
};

struct GenerateResult {
  std::vector<int32_t> tokens;             // as drawn
  std::vector<std::vector<float>> logits;  // that each was drawn from, if wanted
  bool stopped = false;                    // by a stop id or by on_token
  bool interrupted = false;
  double prefill_s = 0;  // to the first token
  double decode_s = 0;   // for all others
};

// Throws as Decoder::AddSequence does. The decoder's other sequences go on meanwhile, and their
// tokens are lost: it is meant for a decoder of its own.
GenerateResult Generate(Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options);

}  // namespace tokline
