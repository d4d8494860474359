// The table of rotary position embeddings.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/models/model_spec.h"

namespace tokline {

// Returns cos and sin of position * frequency as [num_positions, head_dim / 2] pairs, computed in
// double and rounded once. The frequency of pair i is theta^(-2 i / head_dim), changed by `scaling`
// if it is given.
std::vector<float> MakeRopeTable(int64_t num_positions, int32_t head_dim, double theta,
                                 const std::optional<Llama3Scaling>& scaling = {});

}  // namespace tokline
