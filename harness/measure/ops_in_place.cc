// Observers of CaptureNextStep() stamp the clock behind one launch of a step.
#include "harness/measure/ops_in_place.h"

#include <algorithm>
#include <map>
#include <memory>

#include "harness/measure/batch_run.h"
#include "harness/measure/clock_stamps.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Stamps the clock before the first launch of a step and after the one of this number, which counts
// from 1, and lists the ops of all launches.
class MarkedStep : public OpObserver {
 public:
  MarkedStep(ClockStamps& stamps, size_t marked) : stamps_(stamps), marked_(marked) {}

  void Begin(StepOp op, std::string_view) override {
    if (ops_.empty()) stamps_.Stamp(false);
    ops_.push_back(op);
  }
  void End() override {
    if (ops_.size() == marked_) stamps_.Stamp(true);
  }

  // Is called before each step of a host, which enqueues its ops anew.
  void Restart() { ops_.clear(); }
  const std::vector<StepOp>& Ops() const { return ops_; }

 private:
  ClockStamps& stamps_;
  size_t marked_;
  std::vector<StepOp> ops_;
};

// A step that shows when one of its launches ends.
class StampedGraph {
 public:
  StampedGraph(Decoder& decoder, ClockStamps& stamps, size_t marked)
      : on_host_(decoder.Options().device == Device::kCpu),
        observer_(stamps, marked),
        graph_(decoder.CaptureNextStep(observer_)) {}

  void Enqueue() {
    if (on_host_) observer_.Restart();
    graph_->Enqueue();
  }
  const std::vector<StepOp>& Ops() const { return observer_.Ops(); }

 private:
  bool on_host_;
  MarkedStep observer_;
  std::unique_ptr<WorkGraph> graph_;
};

}  // namespace

std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds) {
  Require(rounds >= 1, "rounds is ", rounds, "; it must be >= 1");
  Require(decoder.Options().ranks == 1, "ops are timed in place on 1 rank; the decoder has ",
          decoder.Options().ranks);
  BatchRun run(decoder, bench, bench.seed);
  if (!run.FillDepth() || !run.Prefill() || !run.Decode((bench.new_tokens - 1) / 2))
    return std::nullopt;
  std::vector<StepOp> order;
  {
    ClockStamps unread(decoder.GetBackend(), 1);
    StampedGraph whole_step(decoder, unread, 1);
    whole_step.Enqueue();
    order = whole_step.Ops();
    decoder.GetBackend().Synchronize();
  }
  ClockStamps stamps(decoder.GetBackend(), 2 * std::ssize(order));
  std::vector<std::unique_ptr<StampedGraph>> steps;
  for (size_t launch = 1; launch <= order.size(); ++launch)
    steps.push_back(std::make_unique<StampedGraph>(decoder, stamps, launch));

  std::map<StepOp, std::vector<double>> times;
  for (int round = -1; round < rounds; ++round) {
    stamps.Restart();
    for (const auto& step : steps) {
      if (bench.interrupted != nullptr && bench.interrupted->load()) return std::nullopt;
      step->Enqueue();
    }
    const std::vector<int64_t> read = stamps.Read();
    if (read.size() != 2 * order.size()) {
      throw RuntimeFailure(StrCat("the device took ", read.size(), " stamps of its clock in ",
                                  order.size(), " steps, not two in each"));
    }
    if (round < 0) continue;  // the first round is a warm-up
    std::map<StepOp, double> sums;
    int64_t before_ns = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const int64_t ns = read[2 * i + 1] - read[2 * i];
      sums[order[i]] += 1e-3 * static_cast<double>(ns - before_ns);
      before_ns = ns;
    }
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
