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
  std::optional<InPlaceTime> time = {};  // of all of them; none for the op that begins the step
};

// Times the ops of decode steps, without a trace. For each launch of the step there is a graph of
// the whole step with two stamps of the device's clock: before a launch that comes five to ten
// launches earlier, and when this launch has ended. A launch takes the difference between its graph
// and that of the launch before it, whose first stamp stands in the same place, and an op the sum
// over its launches. The time therefore runs from the end of the op's predecessor to its own end,
// as in a profile. Nothing before the second stamp knows of it, and what comes after starts as
// early as otherwise, and loads its weights meanwhile. The figure is the mean of four steps spread
// over a repeat of the bench, of each the median of `rounds` rounds over all graphs. The op that
// begins a step has no predecessor, so that its start could not be told from that of the graph.
//
// The decoder must be warmed up, run chains of ops, and have no sequences. Returns nothing if it
// was interrupted. Throws InvalidArgument if the decoder is too small for the batch.
std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds);

// The same over few rounds while a trace runs, which shows what the trace of a profile adds to an
// op. CUDA builds only. Throws RuntimeFailure if tracing is not possible.
std::optional<std::vector<OpInPlace>> TimeOpsInPlaceTraced(Decoder& decoder,
                                                           const BenchOptions& bench);

// Copies the times to the ops of a profile of the same step.
void AddInPlaceTimes(const std::vector<OpInPlace>& times, StepProfile& profile);

}  // namespace tokline
