// Times a launch again and again: on the host, or as replays of CUDA graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/common/launch_options.h"

namespace tokline {

// One launch on each buffer set.
struct Rotation {
  double us = 0;       // of one launch
  double late_us = 0;  // that the device was busy after the rotation had ended
};

class LaunchTimer {
 public:
  virtual ~LaunchTimer() = default;
  virtual int launches_per_sample() const = 0;
  // `count` samples of one launch in microseconds; fewer where interrupted. `meanwhile`, if any, is
  // called while they run, or after them where the host itself runs them.
  virtual std::vector<double> Sample(int count, const std::function<void()>& meanwhile) = 0;
  // Exactly one launch on each buffer set, timed on its own. The caller has just refilled them.
  virtual Rotation RotateOnce() = 0;
};

struct HostTimerOptions {
  int buffer_sets = 1;          // call i of a sample gets i modulo this
  double slowdown_percent = 0;  // a busy wait after each sample of that share of its time
};

// Calls `run`; a sample is as many calls as the clock needs to resolve one.
std::unique_ptr<LaunchTimer> MakeHostTimer(std::function<void(int buffer_set)> run,
                                           const HostTimerOptions& options);

struct GraphTimerOptions {
  int buffer_sets = 1;          // launch i of a graph gets i modulo this
  bool dependent = false;       // every launch but a graph's first may start before its
                                // predecessor ends
  double min_sample_us = 1000;  // a graph holds as many launches as that takes
  int64_t evict_bytes = 0;      // swept through the L2 before RotateOnce; 0: nothing
  double slowdown_percent = 0;  // one spinning node, at a random place, that makes a sample so
                                // much longer, as measured when the timer is made
  double rest_share = 0;        // so many times as long as a replay took, the device rests before
                                // the next when the spin is searched: a power cap may slow either
};

// Captures launches into a CUDA graph; a sample is a replay between events. Replays are queued back
// to back, so that neither the host nor the start of a graph is in a sample. `launch` must have
// been called once before, outside of any capture; it is called only while this captures. CUDA
// builds only.
std::unique_ptr<LaunchTimer> MakeGraphTimer(
    std::function<void(int buffer_set, const LaunchOptions&)> launch,
    const GraphTimerOptions& options);

}  // namespace tokline
