// Checks made before a case is timed: its tensors must be large enough for the work that it states,
// and its inputs must be the expected random values.
#pragma once

#include <random>
#include <string>

#include "benches/tensors.h"
#include "kernels/common/cost.h"

namespace tokline::bench {

// Returns why launches on these tensors cannot do the stated work, or "". Every compulsory byte
// must be in a tensor, and at least half of the bytes read must be refilled with random values.
std::string CheckWork(const Cost& cost, const TensorList& tensors);

// Reads every random tensor of the store back at a few random places. Returns how it differs from
// the values that `seed` gives, or "". This also holds after launches, which must not write to
// inputs.
std::string CheckInputs(const TensorStore& store, uint64_t seed, std::mt19937_64& rng);

}  // namespace tokline::bench
