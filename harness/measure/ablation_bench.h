// Measures what a fused or custom op gains: times the decoder with the op against the decoder with
// its plain counterpart, and the op alone at the decoder's own shapes, round by round.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/engine/step_ops.h"
#include "harness/measure/throughput.h"

namespace tokline {

// Each vector of times has one entry per round; entries with the same index come from the same
// round.
struct AblationSide {
  std::vector<double> decode_ms;   // of one decode step: the mean over the round's steps
  std::vector<double> prefill_ms;  // of all prompts together
  // of the ops of one decode step; empty when they were not timed alone
  std::vector<double> alone_us;
  std::vector<BenchText> texts;  // of the last round
};

struct AblationRounds {
  AblationSide with, without;
  bool interrupted = false;
};

// Runs one round that is not counted, then bench.repeats rounds of both decoders on the same
// prompts; the order of the two is drawn anew for each round. If `ops` is not empty, then runs the
// same number of rounds of these ops alone: the decode step in the middle of the bench, in which
// only these ops are launched, in all layers. A whole step precedes each run, so that the caches
// are as the decoder leaves them; a round's figure is the median of 3. Both decoders must be warmed
// up, have no sequences and be of the same model. Throws InvalidArgument if one of them is too
// small for the batch.
AblationRounds RunAblation(Decoder& with, Decoder& without, StepOpSet ops,
                           const BenchOptions& bench);

// Takes the results of the same trial with the two decoders created in either order and returns,
// round by round, the geometric mean of both. The place of a decoder's memory depends on whether it
// was created first or second. The mean puts this effect into both sides, so that it cancels in
// their ratio. Throws InvalidArgument if the numbers of rounds differ.
AblationRounds MeanOfOrders(const AblationRounds& one, const AblationRounds& other);

}  // namespace tokline
