// Simulates a device on the host: its clock, L2, streams and graphs. Kernels are functions over
// host memory that report what they touch. Nothing waits, and every run gives the same result.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "benches/execution.h"

namespace tokline::bench {

// A cache that evicts the least recently used line.
class SimulatedL2 {
 public:
  // Returns the number of bytes that were not in the cache.
  int64_t Touch(const void* at, int64_t bytes);
  void Clear();

  static constexpr int64_t kBytes = 64 << 10;

 private:
  static constexpr int64_t kLine = 128;
  std::list<int64_t> lines_;  // most recently used first
  std::unordered_map<int64_t, std::list<int64_t>::iterator> at_;
};

class SimulatedDevice {
 public:
  // The operations of a running kernel.
  class KernelRun {
   public:
    explicit KernelRun(SimulatedDevice& device) : device_(device) {}
    void Touch(const void* at, int64_t bytes);  // reads or writes
    void Compute(double us) { us_ += us; }
    double NowUs() const { return device_.now_us_ + us_; }
    double us() const { return us_; }

   private:
    SimulatedDevice& device_;
    double us_ = kLaunchUs;
  };
  using Kernel = std::function<void(KernelRun&)>;
  using Graph = std::vector<Kernel>;

  // Queues a kernel on a stream, whose pointer only identifies it. During a capture, adds the
  // kernel to the graph instead.
  void Launch(CUstream_st* stream, Kernel kernel);
  Graph Capture(const std::function<void(CUstream_st*)>& record);
  // Runs the graph. Returns the times at which it began and ended.
  std::pair<double, double> Replay(const Graph& graph);
  // Runs everything that is queued, on all streams.
  void Synchronize();
  void Pass(double us) { now_us_ += us; }
  double now_us() const { return now_us_; }
  SimulatedL2& l2() { return l2_; }

  CUstream_st* main_stream() { return reinterpret_cast<CUstream_st*>(&streams_[0]); }
  CUstream_st* side_stream() { return reinterpret_cast<CUstream_st*>(&streams_[1]); }

  static constexpr double kLaunchUs = 1;
  static constexpr double kMemoryBytesPerUs = 4000;
  static constexpr double kL2BytesPerUs = 40000;

 private:
  void RunNow(const Kernel& kernel);

  double now_us_ = 0;
  SimulatedL2 l2_;
  Graph* capturing_ = nullptr;
  std::deque<Kernel> queue_;
  char streams_[2]{};
};

class SimulatedExecution : public Execution {
 public:
  // Samples vary by up to this share in either direction.
  explicit SimulatedExecution(SimulatedDevice& device, double noise = 0.002)
      : device_(device), noise_(noise) {}

  std::string DeviceName() const override { return "simulated"; }
  CaseContext Context(DType dtype) const override;
  Placement Place(const Cost& cost, const TensorList& tensors) const override;
  int64_t SweepBytes() const override { return 64 << 20; }
  std::unique_ptr<Memory> MakeMemory() const override;
  void Run(const BenchCase& bench_case, const TensorStore& store, int count,
           bool dependent) const override;
  std::unique_ptr<LaunchTimer> MakeTimer(const BenchCase& bench_case, const TensorStore& store,
                                         const TimerOptions& options) const override;
  bool MeasuresSpeed() const override { return true; }
  std::string UuidHash() const override { return "simulated"; }
  // Returns the next of `states`, or an undisturbed state if none is left.
  GpuState State() const override;
  std::optional<Peaks> Measure() const override;
  void Rest(double us) const override;

  mutable std::deque<GpuState> states;
  mutable double rested_us = 0;
  mutable double rest_share = 0;  // rest_share of the newest timer

 private:
  SimulatedDevice& device_;
  double noise_;
};

}  // namespace tokline::bench
