// Runs a full batch of random prompts through a decoder, with prefill and decode as separate
// phases, after a depth of other tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/engine/token_times.h"
#include "harness/measure/throughput.h"

namespace tokline {

class BatchRun {
 public:
  // Adds the sequences of the batch to the decoder and removes them on destruction. Throws
  // InvalidArgument if the decoder is too small for the batch or the options are not allowed.
  BatchRun(Decoder& decoder, const BenchOptions& options, uint64_t seed);
  ~BatchRun();
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  // Computes the K and V of the depth of every sequence. This must be called first; without a depth
  // it does nothing. Returns false if it was interrupted.
  bool FillDepth();
  // Runs until every sequence has its first token. Returns false if it was interrupted.
  bool Prefill();
  // Runs steps of the full batch, at most new_tokens - 1 in total, and waits for the last one.
  // Returns false if it was interrupted.
  bool Decode(int64_t steps);
  // Returns the texts of the first and the last sequence, cut to new_tokens; can be called once.
  std::vector<BenchText> TakeTexts();
  // Returns the latencies of the first new_tokens tokens of every sequence; can be called once.
  TokenLatencies TakeLatencies() { return std::move(latencies_); }

 private:
  bool Steps(int64_t count, double host_delay_us);
  void Keep(std::span<const NewToken> tokens);

  Decoder& decoder_;
  const BenchOptions& options_;
  std::vector<SequenceId> ids_;    // consecutive
  std::vector<TokenTimes> times_;  // since the beginning of the prefill
  TokenLatencies latencies_;
  std::vector<SequenceId> kept_;  // the sequences whose texts are kept
  std::vector<BenchText> texts_;
};

}  // namespace tokline
