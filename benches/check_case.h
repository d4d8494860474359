// What is checked of a case before it is timed: that its tensors can hold the work it states, and
// that its inputs are the random values they should be.
#pragma once

#include <random>
#include <string>

#include "benches/tensors.h"
#include "kernels/common/cost.h"

namespace tokline::bench {

// Why the stated work cannot be that of launches on these tensors, or "": every compulsory byte is
// in a tensor, and at least half of what is read is refilled with random values.
std::string CheckWork(const Cost& cost, const TensorList& tensors);

// Reads every random tensor of the store back at a few random places. Returns what differs from the
// values that `seed` gives, or "". Also true after launches, which must not write to their inputs.
std::string CheckInputs(const TensorStore& store, uint64_t seed, std::mt19937_64& rng);

}  // namespace tokline::bench
