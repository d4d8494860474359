// Implements the simulated device, and the memory and timer that bench cases use on it.
#include "benches/tests/simulated_execution.h"

#include <algorithm>
#include <cmath>

namespace tokline::bench {
namespace {

// Host memory. Fills go through the simulated cache, and copies take simulated time.
class SimulatedMemory : public Memory {
 public:
  explicit SimulatedMemory(SimulatedDevice& device) : device_(device) {}
  void* Allocate(int64_t bytes) override { return host_->Allocate(bytes); }
  void SetBytes(void* at, unsigned char byte, int64_t bytes) override {
    device_.l2().Touch(at, bytes);
    host_->SetBytes(at, byte, bytes);
  }
  void Fill(const TensorSpec& spec, void* at, uint64_t seed) override {
    device_.l2().Touch(at, spec.Bytes());
    host_->Fill(spec, at, seed);
  }
  void CopyIn(void* to, const void* host, int64_t bytes) override {
    host_->CopyIn(to, host, bytes);
  }
  void CopyOut(void* host, const void* from, int64_t bytes) const override {
    device_.Synchronize();
    device_.Pass(kCopyUs);
    host_->CopyOut(host, from, bytes);
  }
  void Synchronize() override { device_.Synchronize(); }

 private:
  static constexpr double kCopyUs = 10;
  SimulatedDevice& device_;
  std::unique_ptr<Memory> host_ = MakeHostMemory();
};

// The counterpart of the graph timer for the simulated device.
class SimulatedTimer : public LaunchTimer {
 public:
  SimulatedTimer(SimulatedDevice& device, const BenchCase& bench_case, const TensorStore& store,
                 double slowdown_percent, double noise)
      : device_(device), sets_(store.copies()), slowdown_percent_(slowdown_percent), noise_(noise) {
    const auto capture = [&](int count) {
      return device.Capture([&](CUstream_st* stream) {
        for (int i = 0; i < count; ++i) {
          bench_case.LaunchCuda(store.Set(i % sets_), {.stream = stream, .dependent = false});
        }
      });
    };
    constexpr double kMinSampleUs = 300;
    cold_ = IsCold(bench_case.GetCost().Bytes(), sets_, SimulatedL2::kBytes);
    rotation_ = capture(sets_);
    ReplayUs(rotation_);
    const double rotations = std::ceil(kMinSampleUs / std::max(ReplayUs(rotation_), 1.0));
    launches_ = sets_ * static_cast<int>(rotations);
    graph_ = capture(launches_);
  }

  int launches_per_sample() const override { return launches_; }

  std::vector<double> Sample(int count, const std::function<void()>& meanwhile) override {
    device_.Replay(graph_);
    std::vector<double> samples;
    std::uniform_real_distribution<double> any(-noise_, noise_);
    for (int i = 0; i < count; ++i) {
      const double share = (1 + slowdown_percent_ / 100) * (1 + any(rng_));
      samples.push_back(ReplayUs(graph_) / launches_ * share);
    }
    if (meanwhile) meanwhile();
    device_.Synchronize();
    return samples;
  }

  Rotation RotateOnce() override {
    device_.Synchronize();
    if (cold_) device_.l2().Clear();
    constexpr double kHoldUs = 200;
    device_.Pass(kHoldUs);
    const auto [begin, end] = device_.Replay(rotation_);
    device_.Synchronize();
    return {.us = (end - begin) / sets_, .late_us = device_.now_us() - end};
  }

 private:
  double ReplayUs(const SimulatedDevice::Graph& graph) {
    const auto [begin, end] = device_.Replay(graph);
    return end - begin;
  }

  SimulatedDevice& device_;
  int sets_;
  double slowdown_percent_;
  double noise_;
  bool cold_ = false;
  SimulatedDevice::Graph rotation_;
  SimulatedDevice::Graph graph_;
  int launches_ = 0;
  std::mt19937 rng_{3};
};

}  // namespace

int64_t SimulatedL2::Touch(const void* at, int64_t bytes) {
  const auto address = reinterpret_cast<int64_t>(at);
  int64_t missed = 0;
  for (int64_t line = address / kLine; line * kLine < address + bytes; ++line) {
    const auto found = at_.find(line);
    if (found != at_.end()) {
      lines_.splice(lines_.begin(), lines_, found->second);
      continue;
    }
    missed += kLine;
    lines_.push_front(line);
    at_[line] = lines_.begin();
    if (static_cast<int64_t>(lines_.size()) * kLine > kBytes) {
      at_.erase(lines_.back());
      lines_.pop_back();
    }
  }
  return missed;
}

void SimulatedL2::Clear() {
  lines_.clear();
  at_.clear();
}

void SimulatedDevice::KernelRun::Touch(const void* at, int64_t bytes) {
  const auto missed = static_cast<double>(device_.l2_.Touch(at, bytes));
  us_ += missed / kMemoryBytesPerUs + static_cast<double>(bytes) / kL2BytesPerUs;
}

void SimulatedDevice::Launch(CUstream_st* stream, Kernel kernel) {
  if (capturing_ != nullptr && stream == main_stream()) {
    capturing_->push_back(std::move(kernel));
  } else {
    queue_.push_back(std::move(kernel));
  }
}

SimulatedDevice::Graph SimulatedDevice::Capture(const std::function<void(CUstream_st*)>& record) {
  Graph graph;
  capturing_ = &graph;
  record(main_stream());
  capturing_ = nullptr;
  return graph;
}

std::pair<double, double> SimulatedDevice::Replay(const Graph& graph) {
  const double begin = now_us_;
  for (const Kernel& kernel : graph) RunNow(kernel);
  return {begin, now_us_};
}

void SimulatedDevice::Synchronize() {
  while (!queue_.empty()) {
    const Kernel kernel = std::move(queue_.front());
    queue_.pop_front();
    RunNow(kernel);
  }
}

void SimulatedDevice::RunNow(const Kernel& kernel) {
  KernelRun run(*this);
  kernel(run);
  now_us_ += run.us();
}

CaseContext SimulatedExecution::Context(DType dtype) const {
  return {.dtype = dtype,
          .device = DeviceFacts{.sm_count = 1,
                                .compute_major = 9,
                                .l2_bytes = SimulatedL2::kBytes,
                                .code_architecture = 90}};
}

Placement SimulatedExecution::Place(const Cost& cost, const TensorList& tensors) const {
  constexpr int64_t kRoomBytes = 64 << 20;
  return PlaceInL2(cost.Bytes(), tensors.RotatingBytes(), SimulatedL2::kBytes, kRoomBytes);
}

std::unique_ptr<Memory> SimulatedExecution::MakeMemory() const {
  return std::make_unique<SimulatedMemory>(device_);
}

void SimulatedExecution::Run(const BenchCase& bench_case, const TensorStore& store, int count,
                             bool dependent) const {
  for (int copy = 0; copy < count; ++copy) {
    bench_case.LaunchCuda(store.Set(copy),
                          {.stream = device_.main_stream(), .dependent = dependent});
  }
  device_.Synchronize();
}

std::unique_ptr<LaunchTimer> SimulatedExecution::MakeTimer(const BenchCase& bench_case,
                                                           const TensorStore& store,
                                                           const TimerOptions& options) const {
  rest_share = options.rest_share;
  return std::make_unique<SimulatedTimer>(device_, bench_case, store, options.slowdown_percent,
                                          noise_);
}

GpuState SimulatedExecution::State() const {
  if (states.empty()) return {};
  const GpuState state = states.front();
  states.pop_front();
  return state;
}

void SimulatedExecution::Rest(double us) const {
  device_.Pass(us);
  rested_us += us;
}

std::optional<Peaks> SimulatedExecution::Measure() const {
  constexpr double kGbps = SimulatedDevice::kMemoryBytesPerUs / 1e3;
  return Peaks{.read_gbps = kGbps,
               .two_to_one_gbps = kGbps,
               .copy_gbps = kGbps,
               .launch_us = SimulatedDevice::kLaunchUs};
}

}  // namespace tokline::bench
