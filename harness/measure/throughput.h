// Tokens per second of a decoder: a full batch of random prompts, prefill and decode apart.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "harness/engine/decoder.h"
#include "kernels/common/cost.h"

namespace tokline {

struct BenchOptions {
  int32_t batch = 1;
  int64_t prompt_tokens = 128;
  int64_t new_tokens = 128;                        // at least 2: the first is drawn by the prefill
  int32_t repeats = 5;                             // after one that is not counted
  uint64_t seed = 0;                               // of the prompts
  double host_delay_us = 0;                        // after each decode step, to test the tools
  const std::atomic<bool>* interrupted = nullptr;  // ends the bench after the step under way
};

// One repeat, wall-clock seconds. Prefill ends when every sequence has its first token; decode is
// the new_tokens - 1 steps of the full batch after that.
struct BenchSample {
  double prefill_s = 0;
  double decode_s = 0;
  double decode_host_s = 0;  // of decode_s, in which the host worked and did not wait
};

struct BenchText {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  SamplingRule rule = {};  // by which they were drawn; its offset is not used
};

struct BenchResult {
  BenchOptions options;
  double warm_up_s = 0;  // graphs and one uncounted repeat; in no other figure
  std::vector<BenchSample> samples;
  bool interrupted = false;  // samples may be fewer than repeats, or none
  bool graphs = false;       // decode steps ran as graphs
  // Of the last sample: the first and the last sequence of the batch, for verification.
  std::vector<BenchText> texts;

  // Of the sample with the median time; 0 without samples.
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
  double ms_per_step = 0;  // of decode: milliseconds a token of each sequence
  double host_share = 0;   // of the decode step
};

// Steps until every sequence has its first token.
int64_t PrefillSteps(const BenchOptions& options, int64_t token_budget);

// Context that the decoder must allow: sequences that finish their prefill early run on while the
// others' lasts.
int64_t BenchContextTokens(const BenchOptions& options, int64_t token_budget);

// The least that a decode step of the bench must do, in the mean over its steps: every weight read
// once (of an untied embedding the batch's rows only), the keys and values of the context read,
// those of the new tokens written; products with all weights, and attention. `parameters` of the
// model as ModelWeights counts them, storage in `dtype`.
Cost DecodeStepCost(const ModelSpec& spec, int64_t parameters, DType dtype,
                    const BenchOptions& options);

// Throws InvalidArgument if the decoder is too small for the batch or an option is not allowed.
void RequireFits(const Decoder& decoder, const BenchOptions& options);

// One repeat with prompts of this seed, or none if it was interrupted; `texts`, where given, are
// then left as they were. Needs a decoder without sequences.
std::optional<BenchSample> TimeRepeat(Decoder& decoder, const BenchOptions& options, uint64_t seed,
                                      std::vector<BenchText>* texts);

// Needs a decoder without sequences. Throws InvalidArgument if it is too small for the batch.
BenchResult RunBench(Decoder& decoder, const BenchOptions& options);

}  // namespace tokline
