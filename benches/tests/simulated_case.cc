#include "benches/tests/simulated_case.h"

#include <vector>

#include "benches/measure_row.h"

namespace tokline::bench {

SimulatedCase::SimulatedCase(Launcher launcher, const Options& options)
    : launcher_(std::move(launcher)), options_(options) {
  x_ = options.input_is_table
           ? tensors_.Table(std::vector<float>(static_cast<size_t>(options.rows * kCols)))
           : tensors_.Random(DType::kF32, options.rows, kCols);
  out_ = tensors_.Output(DType::kF32, options.rows, kCols, {1, 0});
  workspace_ = tensors_.Workspace(options.rows * kCols * static_cast<int64_t>(sizeof(float)));
  if (options.decoy_rows > 0) tensors_.Random(DType::kF32, options.decoy_rows, kCols);
}

Cost SimulatedCase::GetCost() const {
  const auto bytes = static_cast<double>(options_.rows * kCols * sizeof(float));
  return options_.cost.value_or(
      Cost{.read_bytes = bytes, .write_bytes = bytes, .flops = bytes / 4});
}

void SimulatedCase::RunReference(const TensorSet& host) const {
  const Buffers b = Bind(host);
  for (int64_t i = 0; i < b.size; ++i) b.out[i] = 3 * b.x[i];
}

void SimulatedCase::LaunchCuda(const TensorSet& device, const LaunchOptions& options) const {
  launcher_(Bind(device), options.stream);
}

SampledCase SimulatedCase::Sample(uint64_t) const {
  return SampledCase(std::make_unique<SimulatedCase>(launcher_, options_));
}

SimulatedCase::Buffers SimulatedCase::Bind(const TensorSet& set) const {
  return {.x = set.At<float>(x_),
          .out = set.At<float>(out_),
          .workspace = set.At<float>(workspace_),
          .size = options_.rows * kCols};
}

void Triple(const SimulatedCase::Buffers& b, SimulatedDevice::KernelRun& run) {
  run.Touch(b.x, b.bytes());
  run.Touch(b.out, b.bytes());
  for (int64_t i = 0; i < b.size; ++i) b.out[i] = 3 * b.x[i];
}

SimulatedCase::Launcher LauncherOf(
    SimulatedDevice& device,
    std::function<void(const SimulatedCase::Buffers&, SimulatedDevice::KernelRun&)> kernel) {
  return
      [&device, kernel = std::move(kernel)](const SimulatedCase::Buffers& b, CUstream_st* stream) {
        device.Launch(stream, [b, kernel](SimulatedDevice::KernelRun& run) { kernel(b, run); });
      };
}

SimulatedCase::Launcher HonestLauncher(SimulatedDevice& device) {
  return LauncherOf(device, Triple);
}

KernelMeasurement Measure(const SimulatedCase::Launcher& launcher,
                          const SimulatedCase::Options& options,
                          const SimulatedExecution& execution, uint64_t seed) {
  KernelMeasurement m{
      .origin = {.run_id = "simulated",
                 .implementation = "simulated",
                 .dtype = "f32",
                 .device = execution.DeviceName()},
      .kernel = "triple",
      .shape = {{"name", "triple"}},
      .cache = "warm",
      .chain = "plain",
      .limits = {.peaks = execution.Measure(),
                 .datasheet = Datasheet{.memory_gbps = SimulatedDevice::kMemoryBytesPerUs / 1e3}}};
  PreparedCase prepared(std::make_unique<SimulatedCase>(launcher, options), execution);
  std::mt19937_64 rng(seed);
  MeasureRow(prepared, execution, {}, rng, m);
  return m;
}

}  // namespace tokline::bench
