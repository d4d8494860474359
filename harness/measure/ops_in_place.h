// Times each op of a decode step in place, as the decoder runs it: after its own predecessors, on
// its own buffers, with its own dependences, in all layers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/engine/decoder.h"
#include "harness/measure/kernel_trace.h"
#include "harness/measure/step_profile.h"
#include "harness/measure/throughput.h"

namespace tokline {

struct OpInPlace {
  StepOp op = StepOp::kEmbedding;
  int64_t launches = 0;                  // in a step
  std::optional<InPlaceTime> time = {};  // of all of them; none for the op that begins the step
};

// Times the ops of decode steps, without a trace. For each launch of the step there is a graph of
// the whole step with two stamps of the device's clock: one before a launch that comes five to ten
// launches earlier, and one when this launch has ended. The time of a launch is the difference
// between its graph and that of the previous launch, whose first stamp is in the same place. The
// time of an op is the sum over its launches. The time therefore runs from the end of the op's
// predecessor to its own end, as in a profile. The kernel after a stamp starts a launch later than
// otherwise, but still loads its weights while the op runs (StampEffects). The figure is the mean
// over four steps spread over a repeat of the bench; for each step it is the median of `rounds`
// rounds over all graphs. The op that begins a step has no predecessor, so its start could not be
// told from that of the graph.
//
// The decoder must be warmed up, run chains of ops, and have no sequences. Returns nothing if it
// was interrupted. Throws InvalidArgument if the decoder is too small for the batch.
std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds);

// The time that stamps add to the times of ops, in microseconds per step; it is negative if they
// make an op seem shorter. A stamp after an op delays the launch of the op's successor, and with it
// the successor's early loads, so that the op ends later than without the stamp, by up to 0.3 us on
// an H200. An op's time in place includes its own delay, and lacks its predecessor's.
using StampEffects = std::map<StepOp, double>;

// The times of all ops but the first, and the effects of the stamps, over a few rounds while a
// trace of kernels runs, as it does for a profile. Returns nothing if it was interrupted. CUDA
// builds only. Throws RuntimeFailure if tracing is not possible.
std::optional<std::map<StepOp, TracedTime>> TimeOpsInPlaceTraced(Decoder& decoder,
                                                                 const BenchOptions& bench);

// The effects in a trace of rounds of all graphs that TimeOpsInPlace makes of a step with these
// launches: the end of a launch that is followed by a stamp, less its end in the next graph, whose
// first stamp is in the same place and whose second stamp comes a launch later. Throws
// RuntimeFailure if the trace does not have two stamps for each graph.
StampEffects EffectsOfStamps(std::vector<TracedKernel> kernels, const std::vector<StepOp>& order);

// Adds the times, and the times under a trace if they are known, to the ops of a profile of the
// same step.
void AddInPlaceTimes(const std::vector<OpInPlace>& times,
                     const std::map<StepOp, TracedTime>& traced, StepProfile& profile);

}  // namespace tokline
