// How long a spin must last to make a sample longer by a stated time: it hides some of what drains
// or starts beside it, and brings a launch of its own.
#pragma once

#include <functional>

namespace tokline {

// `added_us` measures by how much a sample grows with a spin of so many microseconds. Returns, of
// the few spins that were tried, the one that comes nearest to `wanted_us`, which is positive.
double FindSpinUs(double wanted_us, const std::function<double(double spin_us)>& added_us);

}  // namespace tokline
