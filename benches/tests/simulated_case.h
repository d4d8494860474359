// out = 3 x in fp32 on the simulated device, and whatever a test does instead.
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
    std::optional<Cost> cost{};   // stated instead of the true one
    bool input_is_table = false;  // x is a table of zeros
    int64_t decoy_rows = 0;       // of a random input that is never read
  };

  SimulatedCase(Launcher launcher, const Options& options);

  Cost GetCost() const override;
  void RunReference(const TensorSet& host) const override;
  void LaunchCuda(const TensorSet& device, const LaunchOptions& options) const override;
  // All of it: every element is compared.
  SampledCase Sample(uint64_t seed) const override;

  static constexpr int64_t kCols = 32;

 private:
  Buffers Bind(const TensorSet& set) const;

  Launcher launcher_;
  Options options_;
  int x_, out_, workspace_;
};

// What an honest kernel does.
void Triple(const SimulatedCase::Buffers& b, SimulatedDevice::KernelRun& run);

// Launches it on the stream that was asked for.
SimulatedCase::Launcher HonestLauncher(SimulatedDevice& device);

// The measurement of a case on the simulated device, as a bench program makes it.
KernelMeasurement Measure(const SimulatedCase::Launcher& launcher,
                          const SimulatedCase::Options& options,
                          const SimulatedExecution& execution, uint64_t seed = 1);

}  // namespace tokline::bench
