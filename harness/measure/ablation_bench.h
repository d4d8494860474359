// What a fused or custom op is worth: the decoder with it beside the decoder with its plain
// counterpart, and the op alone at the decoder's own shapes, round by round.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/engine/step_ops.h"
#include "harness/measure/throughput.h"

namespace tokline {

// One entry a round; those of one index come from one round.
struct AblationSide {
  std::vector<double> decode_ms;   // of a decode step, the mean of the round's
  std::vector<double> prefill_ms;  // of all prompts
  std::vector<double> alone_us;    // of the ops of one decode step, or empty
  std::vector<BenchText> texts;    // of the last round
};

struct AblationRounds {
  AblationSide with, without;
  bool interrupted = false;
};

// bench.repeats rounds of both decoders on the same prompts, in an order that is drawn anew each
// round, after a round that is not counted. Then as many rounds of `ops` alone, if there are any:
// the decode step in the middle of the bench, of which only these ops are launched, in all layers.
// A whole step comes before each, so that the caches are as the decoder leaves them; a round's
// figure is the median of 3. Needs warmed-up decoders without sequences, for the same model. Throws
// InvalidArgument if one is too small for the batch.
AblationRounds RunAblation(Decoder& with, Decoder& without, StepOpSet ops,
                           const BenchOptions& bench);

// Of the same trial, with the one decoder made first and with the other: round by round the
// geometric mean of both. What a decoder owes to where its memory lies, as the first or the second
// that was made, is in both sides then and cancels out of their ratio. Throws InvalidArgument where
// the rounds are not as many.
AblationRounds MeanOfOrders(const AblationRounds& one, const AblationRounds& other);

}  // namespace tokline
