// A speed-up, computed from rounds of both sides, and its verdict on an op.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "harness/measure/timing.h"

namespace tokline {

// The median over the rounds of (time without / time with), and its 95 % interval. A drift of the
// machine affects both sides of a round alike.
struct SpeedUp {
  // Takes one entry per round. Throws InvalidArgument if there are none or the counts differ.
  SpeedUp(std::span<const double> with, std::span<const double> without);

  // Whether there are enough rounds for a 95 % interval; with fewer, the interval is their range.
  bool HasInterval() const { return rounds >= kMinIntervalSamples; }
  // Returns 1 for faster, -1 for slower and 0 for neither; must only be called if there is an
  // interval. Not 0 only if the interval lies on one side of 1, and the effect is at least half a
  // percent and larger than `equal`, the difference between two equal decoders.
  int Direction(double equal = 0) const;
  // Direction is 0, and the interval contains 1 and is too wide to claim that there is no
  // difference.
  bool Unsure(double equal = 0) const;

  double ratio = 0;
  Interval interval;
  int64_t rounds = 0;
};

// Says in words what an op gains alone, if that is known, and in the decoder; the wording is that
// of scripts/records ablate. The last two arguments are the differences between decoders with the
// same ops, in their launches alone and as a whole.
std::string AblationVerdict(const std::optional<SpeedUp>& alone, const SpeedUp& decoder,
                            double equal_alone, double equal_decoders);

}  // namespace tokline
