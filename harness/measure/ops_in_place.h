// Times each op of a decode step where the decoder runs it: after its own predecessors, on its own
// buffers, with its own dependences, in all layers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/throughput.h"

namespace tokline {

struct OpInPlace {
  StepOp op = StepOp::kEmbedding;
  int64_t launches = 0;                  // in a step
  std::vector<StepOp> before = {};       // the ops that it was timed after, in their order
  std::optional<InPlaceTime> time = {};  // of all of them; none for the op that begins the step
};

// Times the decode step in the middle of a repeat of the bench, without a trace. An op's time is
// that of two graphs' difference. One has the op and the two ops before it, from every layer; the
// other lacks the op. Both prefetch what the step prefetches. Each group of ops begins when the
// device is idle, and both graphs run directly after a whole step, so that the caches are as the
// decoder leaves them. The time therefore runs from the end of the op's predecessor to its own end,
// as in a profile. What it cannot contain is that the op's successor already loads its weights
// meanwhile. The figure is the median of `rounds` pairs. The op that begins a step has no
// predecessor, so that its start could not be told from that of the graph.
//
// The decoder must be warmed up, run chains of ops, and have no sequences. Returns nothing if it
// was interrupted. Throws InvalidArgument if the decoder is too small for the batch.
std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds);

// Copies the times to the ops of a profile of the same step.
void AddInPlaceTimes(const std::vector<OpInPlace>& times, StepProfile& profile);

}  // namespace tokline
