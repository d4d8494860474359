// Observers of CaptureNextStep() stamp the clock before and after some launches of a step.
#include "harness/measure/ops_in_place.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>

#include "harness/measure/batch_run.h"
#include "harness/measure/clock_stamps.h"
#include "harness/measure/kernel_trace.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// The number of timed steps. They are spread evenly over those of a repeat, because contexts grow,
// and with them attention and its grid.
constexpr int kPlaces = 4;

// The launches of a step after number `from`, up to number `to`, counted from 1.
struct Span {
  size_t from, to;
};

// The time of a launch is the difference between two spans that begin together. They begin one to
// two windows before it: far enough that the first stamp is not its neighbour, and no further,
// because the time of the launches before it varies from step to step by more than a short launch
// lasts.
constexpr size_t kWindow = 5;
bool OnlyBegins(const Span& span) { return span.from > 0 && span.to == span.from + kWindow; }

std::vector<Span> SpansOf(size_t launches) {
  std::vector<Span> spans;
  for (size_t from = 0; from == 0 || from + kWindow < launches; from += kWindow) {
    const size_t last = std::min(from + 2 * kWindow, launches);
    for (size_t to = from == 0 ? 1 : from + kWindow; to <= last; ++to) spans.push_back({from, to});
  }
  return spans;
}

// Stamps the clock before and after a span, and lists the ops of all launches.
class MarkedStep : public OpObserver {
 public:
  MarkedStep(ClockStamps& stamps, Span span) : stamps_(stamps), span_(span) {}

  void Begin(StepOp op, std::string_view) override {
    if (ops_.size() == span_.from) stamps_.Stamp(span_.from > 0);
    ops_.push_back(op);
  }
  void End() override {
    if (ops_.size() == span_.to) stamps_.Stamp(true);
  }

  // Called before each step on the host, which enqueues its ops anew.
  void Restart() { ops_.clear(); }
  const std::vector<StepOp>& Ops() const { return ops_; }

 private:
  ClockStamps& stamps_;
  Span span_;
  std::vector<StepOp> ops_;
};

// A step that shows how long a span takes.
class StampedGraph {
 public:
  StampedGraph(Decoder& decoder, ClockStamps& stamps, Span span)
      : on_host_(decoder.Options().device == Device::kCpu),
        observer_(stamps, span),
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

std::vector<StepOp> OpsOfNextStep(Decoder& decoder) {
  ClockStamps unread(decoder.GetBackend(), 1);
  StampedGraph step(decoder, unread, {.from = 0, .to = 1});
  step.Enqueue();
  decoder.GetBackend().Synchronize();
  return step.Ops();
}

using OpSamples = std::map<StepOp, std::vector<double>>;  // microseconds, one of each round

// Returns nothing if interrupted.
std::optional<OpSamples> TimeNextStep(Decoder& decoder, const std::vector<StepOp>& order,
                                      int rounds, const std::atomic<bool>* interrupted) {
  const std::vector<Span> spans = SpansOf(order.size());
  ClockStamps stamps(decoder.GetBackend(), 2 * std::ssize(spans));
  std::vector<std::unique_ptr<StampedGraph>> steps;
  for (const Span& span : spans)
    steps.push_back(std::make_unique<StampedGraph>(decoder, stamps, span));

  OpSamples samples;
  for (int round = -1; round < rounds; ++round) {
    stamps.Restart();
    for (const auto& step : steps) {
      if (interrupted != nullptr && interrupted->load()) return std::nullopt;
      step->Enqueue();
    }
    const std::vector<int64_t> read = stamps.Read();
    if (read.size() != 2 * spans.size()) {
      throw RuntimeFailure(StrCat("the device took ", read.size(), " stamps of its clock in ",
                                  spans.size(), " steps, not two in each"));
    }
    if (round < 0) continue;  // the first round is a warm-up
    std::map<StepOp, double> sums;
    int64_t before_ns = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      const int64_t ns = read[2 * i + 1] - read[2 * i];
      if (!OnlyBegins(spans[i]))
        sums[order[spans[i].to - 1]] += 1e-3 * static_cast<double>(ns - before_ns);
      before_ns = ns;
    }
    for (const auto& [op, us] : sums) samples[op].push_back(us);
  }
  return samples;
}

// Calls at_place(ops of a step) before each of kPlaces steps that are spread over a repeat of the
// bench. Returns whether neither it nor the bench was interrupted.
template <typename AtPlace>
bool AtEachPlace(Decoder& decoder, const BenchOptions& bench, const AtPlace& at_place) {
  Require(decoder.Options().ranks == 1, "ops are timed in place on 1 rank; the decoder has ",
          decoder.Options().ranks);
  BatchRun run(decoder, bench, bench.seed);
  if (!run.FillDepth() || !run.Prefill()) return false;
  const std::vector<StepOp> order = OpsOfNextStep(decoder);  // and of all later ones
  int64_t decoded = 0;
  for (int place = 0; place < kPlaces; ++place) {
    const int64_t before = (bench.new_tokens - 1) * (2 * place + 1) / (2 * kPlaces);
    if (!run.Decode(before - decoded)) return false;
    decoded = before;
    if (!at_place(order)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<OpInPlace>> TimeOpsInPlace(Decoder& decoder, const BenchOptions& bench,
                                                     int rounds) {
  Require(rounds >= 1, "rounds is ", rounds, "; it must be >= 1");
  std::vector<StepOp> launched;
  std::map<StepOp, InPlaceTime> times;
  const auto time = [&](const std::vector<StepOp>& order) {
    launched = order;
    const std::optional<OpSamples> samples =
        TimeNextStep(decoder, order, rounds, bench.interrupted);
    if (!samples) return false;
    for (const auto& [op, us] : *samples) {
      const Interval interval = MedianInterval(us);
      times[op].us += Median(us) / kPlaces;
      times[op].ci95_us.low += interval.low / kPlaces;
      times[op].ci95_us.high += interval.high / kPlaces;
    }
    return true;
  };
  if (!AtEachPlace(decoder, bench, time)) return std::nullopt;

  std::vector<OpInPlace> found;
  for (const StepOp op : AllStepOps()) {
    const int64_t launches = std::ranges::count(launched, op);
    if (launches == 0) continue;
    found.push_back({.op = op, .launches = launches});
    if (op != launched.front()) found.back().time = times.at(op);
  }
  return found;
}

StampEffects EffectsOfStamps(std::vector<TracedKernel> kernels, const std::vector<StepOp>& order) {
  std::ranges::stable_sort(kernels, {}, &TracedKernel::begin_ns);
  std::vector<size_t> stamps;  // two of each graph
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].name.find(kStampKernel) != std::string::npos) stamps.push_back(i);
  }
  const std::vector<Span> spans = SpansOf(order.size());
  if (stamps.empty() || stamps.size() % (2 * spans.size()) != 0) {
    throw RuntimeFailure(StrCat("the trace has ", stamps.size(), " stamps; rounds of ",
                                spans.size(), " graphs have two in each"));
  }
  std::vector<std::vector<double>> delays_us(order.size() + 1);  // of each launch, counted from 1
  for (size_t graph = 0; 2 * graph + 3 < stamps.size(); ++graph) {
    const Span& span = spans[graph % spans.size()];
    const Span& next = spans[(graph + 1) % spans.size()];
    if (next.from != span.from || next.to != span.to + 1) continue;
    const size_t* const at = stamps.data() + 2 * graph;
    const size_t count = at[1] - at[0] - 1, later_count = at[3] - at[2] - 1;
    if (count == 0 || later_count <= count) {
      throw RuntimeFailure(StrCat("a graph with a stamp one launch later has ", later_count,
                                  " kernels between its stamps, the one before ", count));
    }
    // The time from the first stamp to the end of the last of these kernels.
    const auto end_ns = [&](size_t stamp) {
      return kernels[stamp + count].end_ns - kernels[stamp].end_ns;
    };
    delays_us[span.to].push_back(1e-3 * static_cast<double>(end_ns(at[0]) - end_ns(at[2])));
  }
  StampEffects effects;
  double before_us = 0;
  for (size_t launch = 1; launch <= order.size(); ++launch) {
    // After the step's last launch nothing starts early.
    const double us = delays_us[launch].empty() ? 0 : Median(delays_us[launch]);
    effects[order[launch - 1]] += us - before_us;
    before_us = us;
  }
  return effects;
}

std::optional<std::map<StepOp, TracedTime>> TimeOpsInPlaceTraced(
    [[maybe_unused]] Decoder& decoder, [[maybe_unused]] const BenchOptions& bench) {
#if TOKLINE_HAS_CUDA
  constexpr int kRounds = 5;
  KernelTrace trace;
  std::map<StepOp, TracedTime> times;
  const auto add = [&](const std::vector<StepOp>& order) {
    trace.Take();  // discards the kernels before
    const std::optional<OpSamples> samples =
        TimeNextStep(decoder, order, kRounds, bench.interrupted);
    if (!samples) return false;
    for (const auto& [op, us] : *samples) times[op].us += Median(us) / kPlaces;
    for (const auto& [op, us] : EffectsOfStamps(trace.Take(), order)) {
      if (op != order.front()) times[op].stamps_us += us / kPlaces;
    }
    return true;
  };
  if (!AtEachPlace(decoder, bench, add)) return std::nullopt;
  return times;
#else
  throw RuntimeFailure("this build has no CUDA, so nothing can be traced");
#endif
}

void AddInPlaceTimes(const std::vector<OpInPlace>& times,
                     const std::map<StepOp, TracedTime>& traced, StepProfile& profile) {
  for (OpTime& op : profile.ops) {
    const auto found =
        std::ranges::find(times, op.op, [](const OpInPlace& one) { return Name(one.op); });
    if (found == times.end() || !found->time) continue;
    op.in_place = found->time;
    if (const auto time = traced.find(found->op); time != traced.end()) {
      op.in_place->traced = time->second;
    }
  }
}

}  // namespace tokline
