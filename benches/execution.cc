#include "benches/execution.h"

#include <algorithm>
#include <cmath>

#include "harness/measure/timing.h"
#include "harness/platform/process_memory.h"
#include "kernels/common/error.h"

namespace tokline::bench {

namespace {

class HostExecution : public Execution {
 public:
  std::string DeviceName() const override { return "cpu"; }
  CaseContext Context(DType dtype) const override { return {.dtype = dtype, .device = {}}; }
  Placement Place(const Cost&, const TensorList& tensors) const override {
    // The system promises more memory than it has, so an allocation would not fail.
    const int64_t bytes = tensors.RotatingBytes() + tensors.SharedBytes();
    const int64_t free = AvailableHostBytes();
    Require(bytes <= free, "the case takes ", bytes, " bytes; ", free, " are free");
    return {.buffer_sets = 1, .cache = "cpu"};
  }
  int64_t SweepBytes() const override { return 64 << 20; }
  std::unique_ptr<Memory> MakeMemory() const override { return MakeHostMemory(); }
  void Run(const BenchCase& bench_case, const TensorStore& store, int count, bool) const override {
    for (int copy = 0; copy < count; ++copy) bench_case.RunReference(store.Set(copy));
  }
  std::unique_ptr<LaunchTimer> MakeTimer(const BenchCase& bench_case, const TensorStore& store,
                                         const TimerOptions& options) const override {
    return MakeHostTimer(
        [&bench_case, &store](int set) { bench_case.RunReference(store.Set(set)); },
        {.buffer_sets = store.copies(), .slowdown_percent = options.slowdown_percent});
  }
  bool MeasuresSpeed() const override { return false; }
  std::string UuidHash() const override { return ""; }
  GpuState State() const override { return {}; }
  std::optional<Peaks> Measure() const override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<Execution> MakeHostExecution() { return std::make_unique<HostExecution>(); }

bool IsCold(double touched_bytes, int buffer_sets, int64_t l2_bytes) {
  return buffer_sets * touched_bytes > kColdL2Multiple * static_cast<double>(l2_bytes);
}

Placement PlaceInL2(double touched_bytes, int64_t set_bytes, int64_t l2_bytes, int64_t room_bytes) {
  // With more sets than this, the graphs and their buffers would become too large.
  constexpr double kMaxSets = 1024;
  const double touched = std::max(touched_bytes, 1.0);
  const auto l2 = static_cast<double>(l2_bytes);
  const double room = static_cast<double>(room_bytes) / static_cast<double>(set_bytes);
  const double most = std::min(kMaxSets, std::floor(room));
  const double wanted = std::max(2.0, std::floor(kColdL2Multiple * l2 / touched) + 1);
  const auto cold = static_cast<int>(std::min(wanted, most));
  if (IsCold(touched_bytes, cold, l2_bytes)) return {cold, "cold"};
  const double warm = std::min({most, std::floor(l2 / 2 / touched), double{kMaxWarmSets}});
  return {std::max(1, static_cast<int>(warm)), "warm"};
}

}  // namespace tokline::bench
