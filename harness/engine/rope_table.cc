#include "harness/engine/rope_table.h"

#include <cmath>
#include <numbers>

namespace tokline {
namespace {

double Scaled(double frequency, const Llama3Scaling& scaling) {
  const double wavelengths =
      static_cast<double>(scaling.original_positions) * frequency / (2 * std::numbers::pi);
  if (wavelengths < scaling.low_freq_factor) return frequency / scaling.factor;
  if (wavelengths > scaling.high_freq_factor) return frequency;
  const double kept = (wavelengths - scaling.low_freq_factor) /
                      (scaling.high_freq_factor - scaling.low_freq_factor);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

}  // namespace

std::vector<float> MakeRopeTable(int64_t num_positions, int32_t head_dim, double theta,
                                 const std::optional<Llama3Scaling>& scaling) {
  const int32_t num_pairs = head_dim / 2;
  std::vector<double> frequencies(static_cast<size_t>(num_pairs));
  for (int32_t i = 0; i < num_pairs; ++i) {
    const double frequency = std::pow(theta, -2.0 * i / head_dim);
    frequencies[static_cast<size_t>(i)] = scaling ? Scaled(frequency, *scaling) : frequency;
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
