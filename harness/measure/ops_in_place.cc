// Observers of CaptureNextStep() end a step after any number of its launches.
#include "harness/measure/ops_in_place.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "harness/measure/batch_run.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Enqueues the first `most` launches of a step, and lists their ops.
class Prefix : public OpObserver {
 public:
  explicit Prefix(size_t most) : most_(most) {}

  bool Wants(StepOp) const override { return ops_.size() < most_; }
  bool Prefetches(StepOp) const override { return true; }
  void Begin(StepOp op, std::string_view) override { ops_.push_back(op); }
  void End() override {}

  // Is called before each step of a host, which enqueues its ops anew.
  void Restart() { ops_.clear(); }
  const std::vector<StepOp>& Ops() const { return ops_; }

 private:
  size_t most_;
  std::vector<StepOp> ops_;
};

// A graph of a prefix and its clock.
class TimedPrefix {
 public:
  TimedPrefix(Decoder& decoder, size_t launches)
      : backend_(decoder.GetBackend()),
        observer_(launches),
        graph_(decoder.CaptureNextStep(observer_)),
        begin_(backend_.MakeTimeMark()),
        end_(backend_.MakeTimeMark()) {}

  double TimeUs() {
    begin_->Record();
    Enqueue();
    end_->Record();
    backend_.Synchronize();
    return 1e-3 * end_->NsSince(*begin_);
  }
  void Enqueue() {
    if (backend_.device() == Device::kCpu) observer_.Restart();
    graph_->Enqueue();
  }
  const std::vector<StepOp>& Ops() const { return observer_.Ops(); }

 private:
  Backend& backend_;
  Prefix observer_;
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
  TimedPrefix whole_step(decoder, std::numeric_limits<size_t>::max());
  whole_step.TimeUs();
  const std::vector<StepOp> order = whole_step.Ops();
  std::vector<std::unique_ptr<TimedPrefix>> prefixes;
  for (size_t launches = 1; launches <= order.size(); ++launches)
    prefixes.push_back(std::make_unique<TimedPrefix>(decoder, launches));

  std::map<StepOp, std::vector<double>> times;
  for (int round = -1; round < rounds; ++round) {
    std::map<StepOp, double> sums;
    double before_us = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (bench.interrupted != nullptr && bench.interrupted->load()) return std::nullopt;
      whole_step.Enqueue();
      const double us = prefixes[i]->TimeUs();
      sums[order[i]] += us - before_us;
      before_us = us;
    }
    if (round < 0) continue;  // the first round is a warm-up
    for (const auto& [op, us] : sums) times[op].push_back(us);
  }

  std::vector<OpInPlace> found;
  for (const StepOp op : AllStepOps()) {
    const int64_t launches = std::ranges::count(order, op);
    if (launches == 0) continue;
    found.push_back({.op = op, .launches = launches});
    if (op == order.front()) continue;
    found.back().time = InPlaceTime{.us = Median(times[op]), .ci95_us = MedianInterval(times[op])};
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
