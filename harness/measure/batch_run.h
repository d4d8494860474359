// A full batch of random prompts on its way through a decoder, prefill and decode apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/throughput.h"

namespace tokline {

class BatchRun {
 public:
  // Takes the batch's sequences in, and out at the end of its life. Throws InvalidArgument if the
  // decoder is too small for the batch or the options are not allowed.
  BatchRun(Decoder& decoder, const BenchOptions& options, uint64_t seed);
  ~BatchRun();
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  // Until every sequence has its first token. False if it was interrupted.
  bool Prefill();
  // Steps of the full batch, at most new_tokens - 1 in all; waits for the last. False if it was
  // interrupted.
  bool Decode(int64_t steps);
  // Of the first and the last sequence, each once, cut to new_tokens.
  std::vector<BenchText> TakeTexts();

 private:
  bool Steps(int64_t count, double host_delay_us);
  void Keep(std::span<const NewToken> tokens);

  Decoder& decoder_;
  const BenchOptions& options_;
  std::vector<SequenceId> ids_;
  std::vector<SequenceId> kept_;  // whose texts are
  std::vector<BenchText> texts_;
};

}  // namespace tokline
