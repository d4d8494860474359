// A clock that only a test moves, and backends that differ from another one as a test says, such as
// in the time that their steps take.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "harness/engine/backend.h"
#include "harness/engine/decoder.h"
#include "harness/platform/clock.h"

namespace tokline::testing {

// Replaces the clock while it lives.
class FakeClock {
 public:
  FakeClock() {
    now_ = {};
    Clock::SetSource([] { return now_; });
  }
  ~FakeClock() { Clock::SetSource(std::chrono::steady_clock::now); }
  FakeClock(const FakeClock&) = delete;
  FakeClock& operator=(const FakeClock&) = delete;

  static double NowS() { return SecondsBetween({}, now_); }
  static Clock::time_point Now() { return now_; }
  static void AdvanceTo(Clock::time_point time) { now_ = std::max(now_, time); }

 private:
  inline static Clock::time_point now_ = {};
};

// Does what another backend does. Tests override what they want to differ.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  bool asynchronous() const override { return backend_->asynchronous(); }
  Device device() const override { return backend_->device(); }
  const Ops& ops() const override { return backend_->ops(); }
  const DeviceFacts& facts() const override { return backend_->facts(); }
  CUstream_st* stream() const override { return backend_->stream(); }
  Matmul* matmul() override { return backend_->matmul(); }
  int64_t FreeBytes() const override { return backend_->FreeBytes(); }
  tokline::Memory Allocate(int64_t bytes) override { return backend_->Allocate(bytes); }
  tokline::Memory AllocateStaging(int64_t bytes) override {
    return backend_->AllocateStaging(bytes);
  }
  void CopyToDevice(void* device, const void* staging, int64_t bytes) override {
    backend_->CopyToDevice(device, staging, bytes);
  }
  void CopyCounted(void* device, const void* staging, int64_t most) override {
    backend_->CopyCounted(device, staging, most);
  }
  void CopyToHost(void* staging, const void* device, int64_t bytes) override {
    backend_->CopyToHost(staging, device, bytes);
  }
  void Zero(void* device, int64_t bytes) override { backend_->Zero(device, bytes); }
  void Upload(void* device, const void* host, int64_t bytes) override {
    backend_->Upload(device, host, bytes);
  }
  void Download(void* host, const void* device, int64_t bytes) override {
    backend_->Download(host, device, bytes);
  }
  void UploadWeights(std::span<const WeightCopy> copies) override {
    backend_->UploadWeights(copies);
  }
  void DrawWeights(DType dtype, void* device, const RandomPieces& pieces, uint64_t seed,
                   int log2_scale) override {
    backend_->DrawWeights(dtype, device, pieces, seed, log2_scale);
  }
  std::unique_ptr<TimeMark> MakeTimeMark() override { return backend_->MakeTimeMark(); }
  void Synchronize() override { backend_->Synchronize(); }
  void Rehearse(const std::function<void()>& enqueue) override { backend_->Rehearse(enqueue); }
  std::unique_ptr<WorkGraph> Capture(const std::function<void()>& enqueue) override {
    return backend_->Capture(enqueue);
  }
  int64_t CapturedKernels() const override { return backend_->CapturedKernels(); }
  void AllReduceNorm(AllReduceNormParams params, const LaunchOptions& options) override {
    backend_->AllReduceNorm(params, options);
  }
  const PeerBuffers* Peers() const override { return backend_->Peers(); }
  void GatherColumns(const ColumnGather& gather) override { backend_->GatherColumns(gather); }
  std::unique_ptr<Fence> MakeFence() override { return backend_->MakeFence(); }

 private:
  std::unique_ptr<Backend> backend_;
};

// Computes as the host does. By the fake clock, step i (the work before the i-th fence) takes
// `step_s(i)`: while the host goes on, or before the call returns.
class DelayedBackend : public ForwardingBackend {
 public:
  DelayedBackend(bool asynchronous, std::function<double(int)> step_s)
      : ForwardingBackend(MakeHostBackend()),
        asynchronous_(asynchronous),
        step_s_(std::move(step_s)) {}

  bool asynchronous() const override { return asynchronous_; }
  std::unique_ptr<Fence> MakeFence() override { return std::make_unique<DelayedFence>(*this); }

 private:
  class DelayedFence : public Fence {
   public:
    explicit DelayedFence(DelayedBackend& backend) : backend_(backend) {}
    void Record() override { reached_ = backend_.EndOfStep(); }
    void Wait() override { FakeClock::AdvanceTo(reached_); }

   private:
    DelayedBackend& backend_;
    Clock::time_point reached_;
  };

  Clock::time_point EndOfStep() {
    const auto step =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step_s_(steps_)));
    ++steps_;
    done_ = std::max(done_, FakeClock::Now()) + step;
    if (!asynchronous_) FakeClock::AdvanceTo(done_);
    return done_;
  }

  bool asynchronous_;
  std::function<double(int)> step_s_;
  int steps_ = 0;
  Clock::time_point done_;  // when all work enqueued so far is done
};

inline BackendMaker Delayed(bool asynchronous, std::function<double(int)> step_s) {
  return [=](const RankPlace&) { return std::make_unique<DelayedBackend>(asynchronous, step_s); };
}

}  // namespace tokline::testing
