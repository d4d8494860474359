// Times a launch repeatedly: by calls on the host, or by replays of CUDA graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/common/launch_options.h"

namespace tokline {

// The result of one launch on each buffer set.
struct Rotation {
  double us = 0;       // per launch
  double late_us = 0;  // how long the device stayed busy after the rotation had ended
};

class LaunchTimer {
 public:
  virtual ~LaunchTimer() = default;
  virtual int launches_per_sample() const = 0;
  // Returns `count` samples of the time per launch in microseconds, or fewer if interrupted.
  // `meanwhile`, if set, is called while they run, or after them when the host itself runs them.
  virtual std::vector<double> Sample(int count, const std::function<void()>& meanwhile) = 0;
  // Times exactly one launch on each buffer set, separately. The caller has just refilled the
  // buffers.
  virtual Rotation RotateOnce() = 0;
};

struct HostTimerOptions {
  int buffer_sets = 1;          // call i of a sample uses set i modulo this
  double slowdown_percent = 0;  // adds a busy wait of this share of its time to each sample
};

// Calls `run`. A sample consists of as many calls as the clock needs to resolve one of them.
std::unique_ptr<LaunchTimer> MakeHostTimer(std::function<void(int buffer_set)> run,
                                           const HostTimerOptions& options);

// Returns how many additional launches make a graph of `launches` longer by `percent`, or 0 if no
// number does so exactly enough (kRepeatedLaunchesWithin).
int MoreLaunches(int launches, double percent);

// How many rotations a graph needs to take `least_us` if one takes `rotation_us`: 1 to `most`.
int RotationsOf(double least_us, double rotation_us, int most);

struct GraphTimerOptions {
  int buffer_sets = 1;  // launch i of a graph uses set i modulo this
  // every launch of a graph but the first may start before its predecessor ends
  bool dependent = false;
  // A graph has enough launches to last this long. It takes at least half of this time unless that
  // would need thousands of launches: events have a resolution of 0.5 us.
  double min_sample_us = 1000;
  int64_t evict_bytes = 0;  // swept through the L2 before RotateOnce; 0: nothing is swept
  // Makes a sample longer by this share: by MoreLaunches(), so that the kernel itself does more, in
  // a graph with enough launches for that; or, if such a graph would be too long, by one spinning
  // node at a random place, which is calibrated when the timer is created.
  double slowdown_percent = 0;
  // while the length of the spin is searched, the device rests after each replay for this many
  // times its duration, because a power cap may slow either kind of replay
  double rest_share = 0;
};

// Captures launches into a CUDA graph; a sample is one replay between two events. Replays are
// queued back to back, so that neither the host's time nor the start of a graph is part of a
// sample. `launch` must have been called once before, outside of any capture; it is called only
// while MakeGraphTimer captures. CUDA builds only.
std::unique_ptr<LaunchTimer> MakeGraphTimer(
    std::function<void(int buffer_set, const LaunchOptions&)> launch,
    const GraphTimerOptions& options);

}  // namespace tokline
