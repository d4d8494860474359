// The table of rotary position embeddings.
#pragma once

#include <cstdint>
#include <vector>

namespace tokline {

// cos and sin of position * theta^(-2 i / head_dim): [num_positions, head_dim / 2] pairs
// (cos, sin), computed in double and rounded once.
std::vector<float> MakeRopeTable(int64_t num_positions, int32_t head_dim, double theta);

}  // namespace tokline
