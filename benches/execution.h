// Where a bench's cases run: the host's reference or the CUDA kernels.
#pragma once

#include <memory>
#include <string>

#include "benches/bench_case.h"
#include "harness/core/peaks.h"
#include "harness/core/timing.h"

namespace tokline::bench {

// Buffer sets of a case and what their number makes true of the cache.
struct Placement {
  int buffer_sets = 1;
  std::string cache;  // "cold", "warm" or "cpu"
};

class Execution {
 public:
  virtual ~Execution() = default;
  virtual std::string DeviceName() const = 0;
  virtual CaseContext Context(DType dtype) const = 0;
  // Throws RuntimeFailure that states needed and free bytes where not even one set fits.
  virtual Placement Place(const Cost& cost, const TensorList& tensors) const = 0;
  virtual std::unique_ptr<Memory> MakeMemory() const = 0;
  // Runs the case once on each of the sets [0, count) and waits.
  virtual void Run(const BenchCase& bench_case, const TensorStore& store, int count,
                   bool dependent) const = 0;
  virtual TimedSamples Time(const BenchCase& bench_case, const TensorStore& store, int samples,
                            bool dependent) const = 0;
  // None on the host.
  virtual std::optional<Peaks> Measure() const = 0;
};

std::unique_ptr<Execution> MakeHostExecution();
std::unique_ptr<Execution> MakeDeviceExecution();  // CUDA builds only; needs a usable device

// The buffer sets that make a launch touching `touched_bytes` cold, within `room_bytes`; one and
// "warm" where they do not.
Placement PlaceInL2(double touched_bytes, int64_t set_bytes, int64_t l2_bytes, int64_t room_bytes);

}  // namespace tokline::bench
