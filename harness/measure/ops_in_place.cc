// Observers of CaptureNextStep() choose which ops the two graphs of an op have.
#include "harness/measure/ops_in_place.h"

#include <algorithm>
#include <memory>
#include <span>

#include "harness/measure/batch_run.h"
#include "harness/measure/lead_in.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Lists the ops of a step in the order of their launches.
class LaunchOrder : public OpObserver {
 public:
  void Begin(StepOp op, std::string_view) override { ops_.push_back(op); }
  void End() override {}
  const std::vector<StepOp>& Ops() const { return ops_; }

 private:
  std::vector<StepOp> ops_;
};

// Enqueues a whole step.
class EveryOp : public OpObserver {
 public:
  void Begin(StepOp, std::string_view) override {}
  void End() override {}
};

// Returns up to two different ops that precede the last launches of `op`, in their order. The first
// layer is not typical: there, what begins the step precedes the first op.
std::vector<StepOp> OpsBefore(std::span<const StepOp> order, StepOp op) {
  constexpr size_t kMost = 2;
  std::vector<StepOp> before;
  auto at = std::find(order.rbegin(), order.rend(), op);
  for (; at != order.rend() && before.size() < kMost; ++at) {
    if (*at != op && std::ranges::find(before, *at) == before.end()) before.push_back(*at);
  }
  std::ranges::reverse(before);
  return before;
}

// Enqueues only the ops before one op, and that op if `with` is true. Each group of them begins
// when the device is idle and what was prefetched has arrived. An op that lacks its predecessors,
// as the first layer's first op does, is not enqueued.
class Surroundings : public OpObserver {
 public:
  Surroundings(Backend& backend, std::vector<StepOp> before, StepOp op, bool with)
      : backend_(backend), before_(std::move(before)), op_(op), with_(with) {}

  bool Wants(StepOp op) const override {
    if (op == op_) return with_ && begun_;
    return op == before_.front() || (begun_ && std::ranges::find(before_, op) != before_.end());
  }
  bool Prefetches(StepOp) const override { return true; }
  void Begin(StepOp op, std::string_view) override {
    begun_ = true;
    launches_ += op == op_;
    if (op == before_.front()) Drain();
  }
  void End() override {}

  // Is called before each step of a host, which enqueues its ops anew.
  void Restart() {
    begun_ = false;
    launches_ = 0;
  }
  int64_t Launches() const { return launches_; }

 private:
  void Drain() {
#if TOKLINE_HAS_CUDA
    constexpr int64_t kCycles = 10'000;  // 5 us, in which 16 MB arrive from memory
    if (backend_.device() == Device::kCuda) SpinCycles(kCycles, backend_.stream());
#endif
  }

  Backend& backend_;
  std::vector<StepOp> before_;
  StepOp op_;
  bool with_;
  bool begun_ = false;
  int64_t launches_ = 0;
};

// A graph of an op's surroundings and its clock.
class TimedSurroundings {
 public:
  TimedSurroundings(Decoder& decoder, const std::vector<StepOp>& before, StepOp op, bool with)
      : backend_(decoder.GetBackend()),
        observer_(backend_, before, op, with),
        graph_(decoder.CaptureNextStep(observer_)),
        begin_(backend_.MakeTimeMark()),
        end_(backend_.MakeTimeMark()) {}

  double TimeUs(WorkGraph& whole_step) {
    if (backend_.device() == Device::kCpu) observer_.Restart();
    whole_step.Enqueue();
    begin_->Record();
    graph_->Enqueue();
    end_->Record();
    backend_.Synchronize();
    return 1e-3 * end_->NsSince(*begin_);
  }
  int64_t Launches() const { return observer_.Launches(); }

 private:
  Backend& backend_;
  Surroundings observer_;
  std::unique_ptr<WorkGraph> graph_;
  std::unique_ptr<TimeMark> begin_, end_;
};

}  // namespace

std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds) {
  Require(rounds >= 1, "rounds is ", rounds, "; it must be >= 1");
  Require(decoder.Options().ranks == 1, "the ops of ", decoder.Options().ranks,
          " ranks cannot be timed in place: the sums among them cannot be left out; allowed: 1");
  BatchRun run(decoder, bench, bench.seed);
  if (!run.FillDepth() || !run.Prefill() || !run.Decode((bench.new_tokens - 1) / 2))
    return std::nullopt;
  LaunchOrder listed;
  decoder.CaptureNextStep(listed)->Enqueue();
  decoder.GetBackend().Synchronize();
  const std::vector<StepOp> order = listed.Ops();
  EveryOp every;
  const std::unique_ptr<WorkGraph> whole_step = decoder.CaptureNextStep(every);

  std::vector<OpInPlace> found;
  for (const StepOp op : AllStepOps()) {
    const int64_t launches = std::ranges::count(order, op);
    if (launches == 0) continue;
    const std::vector<StepOp> before = OpsBefore(order, op);
    found.push_back({.op = op, .launches = launches, .before = before});
    if (before.empty()) continue;
    TimedSurroundings with(decoder, before, op, true), without(decoder, before, op, false);
    std::vector<double> differences;
    for (int i = -1; i < rounds; ++i) {
      if (bench.interrupted != nullptr && bench.interrupted->load()) return std::nullopt;
      double with_us = 0, without_us = 0;
      // Whichever graph comes second may find another state of the device, so they take turns.
      if (i % 2 == 0) {
        with_us = with.TimeUs(*whole_step);
        without_us = without.TimeUs(*whole_step);
      } else {
        without_us = without.TimeUs(*whole_step);
        with_us = with.TimeUs(*whole_step);
      }
      if (i < 0) continue;  // the first pair is a warm-up
      const double share = static_cast<double>(launches) / static_cast<double>(with.Launches());
      differences.push_back(share * (with_us - without_us));
    }
    found.back().time =
        InPlaceTime{.us = Median(differences), .ci95_us = MedianInterval(differences)};
  }
  return found;
}

void AddInPlaceTimes(const std::vector<OpInPlace>& times, StepProfile& profile) {
  for (OpTime& op : profile.ops) {
    const auto found =
        std::ranges::find(times, op.op, [](const OpInPlace& one) { return Name(one.op); });
    if (found != times.end()) op.in_place = found->time;
  }
}

}  // namespace tokline
