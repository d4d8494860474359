#include "harness/measure/spin_search.h"

#include <algorithm>
#include <cmath>

namespace tokline {

double FindSpinUs(double wanted_us, const std::function<double(double spin_us)>& added_us) {
  constexpr int kTries = 4;
  constexpr double kNearEnough = 0.03;  // relative to the wanted time; samples cannot resolve less
  double spin_us = wanted_us;
  double nearest_us = spin_us;
  double least_miss_us = INFINITY;
  for (int i = 0; i < kTries && least_miss_us > kNearEnough * wanted_us; ++i) {
    const double short_us = wanted_us - added_us(spin_us);
    if (std::abs(short_us) < least_miss_us) {
      least_miss_us = std::abs(short_us);
      nearest_us = spin_us;
    }
    spin_us = std::max(0.0, spin_us + short_us);
  }
  return nearest_us;
}

}  // namespace tokline
