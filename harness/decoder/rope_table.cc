#include "harness/decoder/rope_table.h"

#include <cmath>

namespace tokline {

std::vector<float> MakeRopeTable(int64_t num_positions, int32_t head_dim, double theta) {
  const int32_t num_pairs = head_dim / 2;
  std::vector<double> frequencies(static_cast<size_t>(num_pairs));
  for (int32_t i = 0; i < num_pairs; ++i) {
    frequencies[static_cast<size_t>(i)] = std::pow(theta, -2.0 * i / head_dim);
  }
  std::vector<float> table;
  table.reserve(static_cast<size_t>(num_positions * head_dim));
  for (int64_t position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace tokline
