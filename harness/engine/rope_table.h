// The table of rotary position embeddings.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/models/model_spec.h"

namespace tokline {

// cos and sin of position * frequency, the frequency of pair i being theta^(-2 i / head_dim),
// scaled where `scaling` says so: [num_positions, head_dim / 2] pairs (cos, sin), computed in
// double and rounded once.
std::vector<float> MakeRopeTable(int64_t num_positions, int32_t head_dim, double theta,
                                 const std::optional<Llama3Scaling>& scaling = {});

}  // namespace tokline
