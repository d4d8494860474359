// Generates the continuation of one prompt.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/engine/token_times.h"
#include "kernels/sampling/sampling.h"

namespace tokline {

struct GenerateOptions {
  int64_t max_new_tokens = 16;
  SamplingRule rule = {};
  std::vector<int32_t> stop_ids = {};  // each of these ends the text, as its last token
  // Teacher forcing: token i is drawn as usual, but the model reads force_ids[i] next.
  std::vector<int32_t> force_ids = {};
  // As in Request.
  std::vector<ShiftedSpan> shifted = {};
  int64_t shifted_after = 0;
  bool want_logits = false;
  bool want_hidden = false;  // also wants the heads; drops the decoder's graphs
  // Called with each token of the result, in order. If it returns false, the token is the last.
  std::function<bool(int32_t)> on_token = {};
  // Called after each step of the prefill with the number of prompt tokens computed so far.
  std::function<void(int64_t)> on_prefill = {};
  // Ends the text early once it is true. Tokens drawn after that are dropped.
  const std::atomic<bool>* interrupted = nullptr;
};

struct GenerateResult {
  std::vector<int32_t> tokens;             // as drawn
  std::vector<std::vector<float>> logits;  // from which each token was drawn, if wanted
  // The residual stream of every token read, after the embedding, each attention and each MLP, if
  // wanted: [tokens, 2 * layers + 1, hidden_size].
  std::vector<float> hidden;
  // The queries and the keys of every token read, as attention reads them, for the heads of rank 0:
  // [tokens, layers, (num_q_heads + num_kv_heads) * head_dim].
  std::vector<float> heads;
  bool stopped = false;  // ended by a stop id or by on_token
  bool interrupted = false;
  TokenTimes times;
};

// Throws like Decoder::AddSequence. Use a decoder that has no other sequences: they would continue
// meanwhile, and their tokens would be lost.
GenerateResult Generate(Decoder& decoder, std::span<const int32_t> prompt,
                        const GenerateOptions& options);

}  // namespace tokline
