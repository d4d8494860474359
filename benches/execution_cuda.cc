// Runs and times cases on the CUDA device.
#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "benches/execution.h"
#include "benches/shared_matmul.h"
#include "harness/measure/fingerprint.h"
#include "harness/platform/cuda_handles.h"
#include "harness/platform/device.h"
#include "harness/platform/device_buffer.h"
#include "harness/platform/random_values.h"

namespace tokline::bench {
namespace {

// The rest is left to the driver, the graphs and the libraries.
constexpr double kUsableShareOfFree = 0.85;

int64_t FreeBytes() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TOKLINE_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<int64_t>(free_bytes) + KeptDeviceBytes();
}

class DeviceExecution : public Execution {
 public:
  DeviceExecution()
      : name_(CudaDeviceName()), facts_(QueryDeviceFacts()), identity_(IdentifyGpu()) {}

  std::string DeviceName() const override { return name_; }
  CaseContext Context(DType dtype) const override { return {.dtype = dtype, .device = facts_}; }
  Placement Place(const Cost& cost, const TensorList& tensors) const override {
    const int64_t free_bytes = FreeBytes();
    const auto room = static_cast<int64_t>(kUsableShareOfFree * static_cast<double>(free_bytes)) -
                      tensors.SharedBytes();
    if (room < tensors.RotatingBytes()) {
      throw RuntimeFailure(StrCat(
          "device memory does not suffice: ", tensors.RotatingBytes() + tensors.SharedBytes(),
          " bytes are needed, ", free_bytes, " are free"));
    }
    return PlaceInL2(cost.Bytes(), tensors.RotatingBytes(), facts_.l2_bytes, room);
  }
  // The other half is for further buffer sets, and for peers that run beside the sweep's record.
  int64_t SweepBytes() const override { return identity_.memory_bytes / 2; }
  std::unique_ptr<Memory> MakeMemory() const override { return MakeDeviceMemory(); }
  void Run(const BenchCase& bench_case, const TensorStore& store, int count,
           bool dependent) const override {
    for (int copy = 0; copy < count; ++copy) {
      bench_case.LaunchCuda(store.Set(copy), {.stream = WorkStream(), .dependent = dependent});
    }
    TOKLINE_CUDA(cudaStreamSynchronize(WorkStream()));
  }
  std::unique_ptr<LaunchTimer> MakeTimer(const BenchCase& bench_case, const TensorStore& store,
                                         const TimerOptions& options) const override {
    std::vector<TensorSet> sets;
    for (int copy = 0; copy < store.copies(); ++copy) sets.push_back(store.Set(copy));
    // Audits of cold launches sweep twice the L2, which evicts what the refill wrote.
    const bool cold = IsCold(bench_case.GetCost().Bytes(), store.copies(), facts_.l2_bytes);
    return MakeGraphTimer(
        [&bench_case, sets = std::move(sets)](int set, const LaunchOptions& launch) {
          bench_case.LaunchCuda(sets[static_cast<size_t>(set)], launch);
        },
        {.buffer_sets = store.copies(),
         .dependent = options.dependent,
         .evict_bytes = cold ? 2 * facts_.l2_bytes : 0,
         .slowdown_percent = options.slowdown_percent,
         .rest_share = options.rest_share});
  }
  bool MeasuresSpeed() const override { return true; }
  void Rest(double us) const override {
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us));
  }
  std::string UuidHash() const override { return identity_.uuid_hash; }
  GpuState State() const override { return ReadGpuState(identity_.pci_bus_id); }
  std::optional<Peaks> Measure() const override {
    constexpr int64_t kSide = 8192;  // large enough for the tensor cores to be the limit
    const DeviceBuffer x(kSide * kSide * 2);
    const DeviceBuffer weight(kSide * kSide * 2);
    const DeviceBuffer out(kSide * kSide * 2);
    const DeviceBuffer workspace(Matmul::kWorkspaceBytes);
    FillRandomOnDevice(DType::kBf16, x.data(), kSide * kSide, /*seed=*/2, /*log2_scale=*/0);
    FillRandomOnDevice(DType::kBf16, weight.data(), kSide * kSide, /*seed=*/3, kMinLog2Scale);
    const Matmul::Problem problem{.dtype = DType::kBf16,
                                  .num_tokens = kSide,
                                  .in_features = kSide,
                                  .out_features = kSide,
                                  .x = x.data(),
                                  .x_stride = kSide,
                                  .weight = weight.data(),
                                  .out = out.data(),
                                  .out_stride = kSide,
                                  .workspace = workspace.data()};
    Matmul& matmul = *SharedMatmul();
    matmul.Prepare(problem);
    return MeasurePeaks(
        MatmulWork{.launch = [&](const LaunchOptions& options) { matmul.Run(problem, options); },
                   .flops = 2.0 * kSide * kSide * kSide});
  }

 private:
  std::string name_;
  DeviceFacts facts_;
  GpuIdentity identity_;
};

}  // namespace

std::unique_ptr<Execution> MakeDeviceExecution() { return std::make_unique<DeviceExecution>(); }

}  // namespace tokline::bench
