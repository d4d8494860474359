// Finds how long a spin must last to make a sample longer by a given time. The two differ because
// the spin overlaps with work that drains or starts beside it, and because it adds a launch of its
// own.
#pragma once

#include <functional>

namespace tokline {

// `added_us` measures by how much a spin of the given length prolongs a sample. Returns the one of
// the few spins tried whose effect is nearest to `wanted_us`, which must be positive.
double FindSpinUs(double wanted_us, const std::function<double(double spin_us)>& added_us);

}  // namespace tokline
