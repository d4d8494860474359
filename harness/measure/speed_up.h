// How much faster something is, from rounds of both sides, and what that says of an op.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "harness/measure/timing.h"

namespace tokline {

// The median over the rounds of time without over time with, and its 95 % interval: what drifts
// moves both sides of a round.
struct SpeedUp {
  // One entry a round. Throws InvalidArgument for none, or for other counts of both.
  SpeedUp(std::span<const double> with, std::span<const double> without);

  // Whether there are rounds enough for the interval to hold at 95 %; with fewer it is their range.
  bool HasInterval() const { return rounds >= kMinIntervalSamples; }
  // Only with an interval: 1 faster, -1 slower, 0 neither: beyond the interval and by half a
  // percent at least, and by more than `equal`, by which things that are equal differ.
  int Direction(double equal = 0) const;
  // Neither, and the interval holds 1 and is too wide to call it no difference.
  bool Unsure(double equal = 0) const;

  double ratio = 0;
  Interval interval;
  int64_t rounds = 0;
};

// Says in words what an op is worth alone, where that is known, and in the decoder, as
// scripts/records ablate does. The last two say by how much decoders with the same ops differ, in
// their launches alone and as a whole.
std::string AblationVerdict(const std::optional<SpeedUp>& alone, const SpeedUp& decoder,
                            double equal_alone, double equal_decoders);

}  // namespace tokline
