// Where a bench's cases run: the host's reference or the CUDA kernels.
#pragma once

#include <memory>
#include <string>

#include "benches/bench_case.h"
#include "harness/measure/launch_timer.h"
#include "harness/measure/nvml.h"
#include "harness/measure/peaks.h"

namespace tokline::bench {

// The buffer sets of a case, and the cache state that their number leads to.
struct Placement {
  int buffer_sets = 1;
  std::string cache;  // "cold", "warm" or "cpu"
};

struct TimerOptions {
  bool dependent = false;
  double slowdown_percent = 0;  // added to every sample, to test the tools
  double rest_share = 0;        // as in GraphTimerOptions
};

class Execution {
 public:
  virtual ~Execution() = default;
  virtual std::string DeviceName() const = 0;
  virtual CaseContext Context(DType dtype) const = 0;
  // Throws RuntimeFailure with the needed and the free bytes if not even one set fits.
  virtual Placement Place(const Cost& cost, const TensorList& tensors) const = 0;
  // The most bytes that a case of a sweep may take.
  virtual int64_t SweepBytes() const = 0;
  virtual std::unique_ptr<Memory> MakeMemory() const = 0;
  // Runs the case once on each of the sets [0, count) and waits.
  virtual void Run(const BenchCase& bench_case, const TensorStore& store, int count,
                   bool dependent) const = 0;
  // Times launches that rotate over all sets. The case and the store must outlive the timer.
  virtual std::unique_ptr<LaunchTimer> MakeTimer(const BenchCase& bench_case,
                                                 const TensorStore& store,
                                                 const TimerOptions& options) const = 0;
  // Whether times are compared with each other. The host's reference only has to be correct.
  virtual bool MeasuresSpeed() const = 0;
  // The hash of GpuIdentity; "" on the host.
  virtual std::string UuidHash() const = 0;
  // The current state of the device; all values are absent on the host.
  virtual GpuState State() const = 0;
  // The peaks of the device, matmul included. None on the host.
  virtual std::optional<Peaks> Measure() const = 0;
  // Leaves the device idle for this long; does nothing on the host.
  virtual void Rest(double /*us*/) const {}
};

std::unique_ptr<Execution> MakeHostExecution();
std::unique_ptr<Execution> MakeDeviceExecution();  // CUDA builds only; needs a usable device

// Whether enough is touched between two uses of one of this many sets.
bool IsCold(double touched_bytes, int buffer_sets, int64_t l2_bytes);

// A warm row rotates over at most this many sets, so that no launch has the inputs of the previous
// one.
inline constexpr int kMaxWarmSets = 8;

// Returns the buffer sets, within `room_bytes`, that make a launch touching `touched_bytes` cold.
// If no number does, returns "warm" and as many sets as fit together into half of the L2, at least
// one.
Placement PlaceInL2(double touched_bytes, int64_t set_bytes, int64_t l2_bytes, int64_t room_bytes);

}  // namespace tokline::bench
