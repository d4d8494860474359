// A delay of one op of the decode step, in the form that DecoderOptions takes.
#pragma once

#include <optional>

#include "harness/engine/backend.h"
#include "harness/engine/step_ops.h"

namespace tokline {

struct OpDelay {
  StepOp op = StepOp::kEmbedding;
  double us = 0;  // after each launch of the op
};

// Returns none if there is no delay. Throws InvalidArgument for a time that Validate(DelayParams)
// rejects.
std::optional<DelayedOp> DelayedBy(const std::optional<OpDelay>& delay, Device device);

}  // namespace tokline
