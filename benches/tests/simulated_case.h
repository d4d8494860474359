// A case that computes out = 3 x in fp32 on the simulated device, with a launcher that a test may
// replace by a dishonest one.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "benches/tests/simulated_execution.h"
#include "harness/record/record.h"

namespace tokline::bench {

class SimulatedCase : public BenchCase {
 public:
  // The addresses of one launch.
  struct Buffers {
    const float* x;
    float* out;
    float* workspace;
    int64_t size;
    int64_t bytes() const { return size * static_cast<int64_t>(sizeof(float)); }
  };
  using Launcher = std::function<void(const Buffers&, CUstream_st* stream)>;
  struct Options {
    int64_t rows = 64;
    std::optional<Cost> cost{};   // stated instead of the true cost
    bool input_is_table = false;  // makes x a table of zeros
    int64_t decoy_rows = 0;       // rows of an additional random input that is never read
  };

  SimulatedCase(Launcher launcher, const Options& options);

  Cost GetCost() const override;
  void RunReference(const TensorSet& host) const override;
  void LaunchCuda(const TensorSet& device, const LaunchOptions& options) const override;
  // The sample is the whole problem, so every element is compared.
  SampledCase Sample(uint64_t seed) const override;

  static constexpr int64_t kCols = 32;

 private:
  Buffers Bind(const TensorSet& set) const;

  Launcher launcher_;
  Options options_;
  int x_, out_, workspace_;
};

// The work of an honest kernel.
void Triple(const SimulatedCase::Buffers& b, SimulatedDevice::KernelRun& run);

// Returns a launcher of this kernel, which uses the given stream.
SimulatedCase::Launcher LauncherOf(
    SimulatedDevice& device,
    std::function<void(const SimulatedCase::Buffers&, SimulatedDevice::KernelRun&)> kernel);

// The launcher of the honest kernel.
SimulatedCase::Launcher HonestLauncher(SimulatedDevice& device);

// Measures a case on the simulated device like a bench program.
KernelMeasurement Measure(const SimulatedCase::Launcher& launcher,
                          const SimulatedCase::Options& options,
                          const SimulatedExecution& execution, uint64_t seed = 1);

}  // namespace tokline::bench
