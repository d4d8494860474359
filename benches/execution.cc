#include "benches/execution.h"

#include <algorithm>

namespace tokline::bench {
namespace {

class HostExecution : public Execution {
 public:
  std::string DeviceName() const override { return "cpu"; }
  CaseContext Context(DType dtype) const override { return {.dtype = dtype, .device = {}}; }
  Placement Place(const Cost&, const TensorList&) const override {
    return {.buffer_sets = 1, .cache = "cpu"};
  }
  std::unique_ptr<Memory> MakeMemory() const override { return MakeHostMemory(); }
  void Run(const BenchCase& bench_case, const TensorStore& store, int count, bool) const override {
    for (int copy = 0; copy < count; ++copy) bench_case.RunReference(store.Set(copy));
  }
  TimedSamples Time(const BenchCase& bench_case, const TensorStore& store, int samples,
                    bool) const override {
    const TensorSet set = store.Set(0);
    return TimeOnHost([&] { bench_case.RunReference(set); }, samples);
  }
  std::optional<Peaks> Measure() const override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<Execution> MakeHostExecution() { return std::make_unique<HostExecution>(); }

Placement PlaceInL2(double touched_bytes, int64_t set_bytes, int64_t l2_bytes, int64_t room_bytes) {
  // Beyond this many sets the graphs and their buffers grow out of proportion.
  constexpr double kMostSets = 1024;
  const double needed = kColdL2Multiple * static_cast<double>(l2_bytes);
  const double room = static_cast<double>(room_bytes) / static_cast<double>(set_bytes);
  const double most = std::min(kMostSets, std::floor(room));
  const double wanted = std::max(2.0, std::floor(needed / std::max(touched_bytes, 1.0)) + 1);
  const double sets = std::min(wanted, most);
  if (sets * touched_bytes > needed) return {static_cast<int>(sets), "cold"};
  return {1, "warm"};
}

}  // namespace tokline::bench
