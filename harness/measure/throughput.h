// Tokens per second of a decoder for a full batch of random prompts, for prefill and decode
// separately.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/token_latencies.h"
#include "kernels/common/cost.h"

namespace tokline {

struct BenchOptions {
  int32_t batch = 1;
  // tokens of each sequence that are in the KV cache before its prompt is measured
  int64_t depth = 0;
  int64_t prompt_tokens = 128;
  // at least 2, because the prefill produces the first
  int64_t new_tokens = 128;
  int32_t repeats = 5;                             // after one repeat that is not counted
  uint64_t seed = 0;                               // of the prompts
  double host_delay_us = 0;                        // after each decode step, to test the tools
  const std::atomic<bool>* interrupted = nullptr;  // ends the bench after the current step
  std::function<void(int64_t)> on_step = {};       // takes the number of tokens of each step
};

// One repeat, in wall-clock seconds. Prefill begins when the depth is in the KV cache, and ends
// when every sequence has its first token; decode consists of the new_tokens - 1 steps of the full
// batch after that.
struct BenchSample {
  double prefill_s = 0;
  double decode_s = 0;
  double decode_host_s = 0;  // part of decode_s in which the host worked instead of waiting
};

struct BenchText {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  SamplingRule rule = {};  // how the tokens were drawn; its offset is not used
};

struct BenchResult {
  BenchOptions options;
  double warm_up_s = 0;  // for graphs and one uncounted repeat; not part of any other figure
  std::vector<BenchSample> samples;
  bool interrupted = false;  // if true, there may be fewer samples than repeats, or none
  bool graphs = false;       // whether decode steps ran as graphs
  // The first and the last sequence of the batch in the last sample, for verification.
  std::vector<BenchText> texts;
  LatencyFigures latencies{};  // of all sequences in all samples, from the beginning of the prefill

  // Each is the median over the samples; 0 without samples.
  double ms_per_step = 0;  // per decode step, that is per token of each sequence
  double host_share = 0;   // the host's working share of the decode step
};

struct BenchRepeat {
  BenchSample sample;
  std::vector<BenchText> texts;  // of the first and the last sequence; the depth is in the prompt
  TokenLatencies latencies;
};

// The number of steps of the prefill, until every sequence has its first token.
int64_t PrefillSteps(const BenchOptions& options, int64_t token_budget);

// The tokens that a repeat computes.
int64_t RepeatTokens(const BenchOptions& options);

// The context length that the decoder must allow. It exceeds the prompt and the new tokens because
// sequences that finish their prefill early keep decoding until the last prefill ends.
int64_t BenchContextTokens(const BenchOptions& options, int64_t token_budget);

// The minimum work of a decode step of the bench, averaged over its steps: read every weight once
// (but only the batch's rows of an untied embedding), read the keys and values of the context,
// write those of the new tokens, and compute the products with all weights and the attention.
// `parameters` is counted as ModelWeights does; values are stored in `dtype`.
Cost DecodeStepCost(const ModelSpec& spec, int64_t parameters, DType dtype,
                    const BenchOptions& options);

// The bytes that a rank has to receive over its links in a decode step of the bench: two sums over
// the ranks in each layer, one for the embedding, and the other ranks' logits.
double DecodeStepLinkBytes(const ModelShard& shard, DType dtype, const BenchOptions& options);

// Throws InvalidArgument if the decoder is too small for the batch or an option is not allowed.
void RequireFits(const Decoder& decoder, const BenchOptions& options);

// Runs one repeat with prompts drawn from this seed. Returns nothing if it was interrupted. The
// decoder must have no sequences.
std::optional<BenchRepeat> TimeRepeat(Decoder& decoder, const BenchOptions& options, uint64_t seed);

// The decoder must have no sequences. Throws InvalidArgument if it is too small for the batch.
BenchResult RunBench(Decoder& decoder, const BenchOptions& options);

}  // namespace tokline
