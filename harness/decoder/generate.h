// One prompt to its continuation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "harness/decoder/decoder.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

struct GenerateOptions {
  int64_t max_new_tokens = 16;
  SamplingRule rule = {};
  std::vector<int32_t> stop_ids = {};  // a token of these ends the text and is its last
  // Teacher forcing: token i is drawn as always, but force_ids[i] is what the model reads next.
  std::vector<int32_t> force_ids = {};
  bool want_logits = false;
  std::function<void(int32_t)> on_token = {};      // called with each token of the result, in order
  const std::atomic<bool>* interrupted = nullptr;  // ends the text early when it becomes true
};

struct GenerateResult {
  std::vector<int32_t> tokens;             // as drawn
  std::vector<std::vector<float>> logits;  // that each was drawn from, if wanted
  bool stopped = false;                    // by a stop id
  bool interrupted = false;
  double prefill_s = 0;  // to the first token
  double decode_s = 0;   // for all others
};

// Throws as Decoder::AddSequence does. The decoder's other sequences go on meanwhile, and their
// tokens are lost: it is meant for a decoder of its own.
GenerateResult Generate(Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options);

}  // namespace tokline
