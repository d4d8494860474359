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

// Times the ops of the decode step in the middle of a repeat of the bench, without a trace, by its
// prefixes: graphs of its first launch, of its first two, and so on until the whole step. A launch
// takes the difference between the prefix that ends with it and the one before, and an op the sum
// over its launches. The time therefore runs from the end of the op's predecessor to its own end,
// as in a profile, and the times of all ops add up to the step. Everything before the op is the
// step's own: its kernels, their dependences, what they prefetch, the caches. What a prefix cannot
// contain is that the successor of its last op already loads its weights meanwhile. Each prefix
// runs directly after a whole step. The figure is the median of `rounds` rounds over all prefixes.
// The op that begins a step has no predecessor, so that its start could not be told from that of
// the graph.
//
// The decoder must be warmed up, run chains of ops, and have no sequences. Returns nothing if it
// was interrupted. Throws InvalidArgument if the decoder is too small for the batch.
std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds);

// Copies the times to the ops of a profile of the same step.
void AddInPlaceTimes(const std::vector<OpInPlace>& times, StepProfile& profile);

}  // namespace tokline
