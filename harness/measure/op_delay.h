// A delay of an op of the decode step, as DecoderOptions takes it.
#pragma once

#include <optional>

#include "harness/engine/backend.h"
#include "harness/engine/step_ops.h"

namespace tokline {

struct OpDelay {
  StepOp op = StepOp::kEmbedding;
  double us = 0;  // after each launch of it
};

// None for none. Throws InvalidArgument for a time that Validate(DelayParams) refuses.
std::optional<DelayedOp> DelayedBy(const std::optional<OpDelay>& delay, Device device);

}  // namespace tokline
