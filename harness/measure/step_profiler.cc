// Profiles the middle decode steps of bench repeats, by CUPTI's trace, by events or by the host's
// clock, and passes the spans to PartitionSteps.
#include "harness/measure/step_profiler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "harness/measure/batch_run.h"
#include "harness/measure/clock_stamps.h"
#include "harness/measure/kernel_trace.h"
#include "harness/measure/step_partition.h"
#include "harness/measure/step_phases.h"
#include "harness/platform/clock.h"
#include "harness/platform/staged_copy.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

constexpr int64_t kMaxSteps = 128;
constexpr int64_t kMaxEventSteps = 16;  // there are two events per op

// Which of the bench's decode steps to profile: those after the first `before`.
struct Window {
  Window(const BenchOptions& options, int64_t most)
      : steps(std::min(options.new_tokens - 1, most)),
        before((options.new_tokens - 1 - steps) / 2) {}
  int64_t steps;
  int64_t before;
};

// Lists each op that it observes once, with its number of launches.
class OpTable {
 public:
  size_t Count(StepOp op, std::string_view kernel) {
    const auto found = std::ranges::find_if(
        ops_, [&](const OpTime& one) { return one.op == Name(op) && one.kernel == kernel; });
    const auto index = static_cast<size_t>(found - ops_.begin());
    if (found == ops_.end()) {
      ops_.push_back({.op = std::string(Name(op)), .kernel = std::string(kernel)});
    }
    ++ops_[index].launches;
    return index;
  }
  // Returns the means over this many steps.
  std::vector<OpTime> Ops(int64_t steps) const {
    std::vector<OpTime> ops = ops_;
    for (OpTime& op : ops) op.launches /= steps;
    return ops;
  }

 private:
  std::vector<OpTime> ops_;
};

// Marks the beginning and the end of each op.
class OpMarks : public OpObserver {
 public:
  explicit OpMarks(Backend& backend) : backend_(backend) {}

  void Begin(StepOp op, std::string_view kernel) override {
    marks_.push_back({.op = table_.Count(op, kernel),
                      .begin = backend_.MakeTimeMark(),
                      .end = backend_.MakeTimeMark()});
    marks_.back().begin->Record();
  }
  void End() override { marks_.back().end->Record(); }

  std::vector<OpTime> Ops(int64_t steps) const { return table_.Ops(steps); }
  // Every step has the same ops.
  std::vector<WorkSpan> Spans(int64_t steps) const {
    const auto count = static_cast<int64_t>(marks_.size());
    Require(count > 0 && count % steps == 0, steps, " steps enqueued ", count, " ops");
    std::vector<WorkSpan> spans;
    for (const OpMark& mark : marks_) {
      const auto ns = [&](const TimeMark& time) {
        return std::llround(time.NsSince(*marks_.front().begin));
      };
      spans.push_back({.begin_ns = ns(*mark.begin),
                       .end_ns = ns(*mark.end),
                       .step = static_cast<int64_t>(spans.size()) / (count / steps),
                       .number = static_cast<int64_t>(spans.size()),
                       .op = mark.op});
    }
    return spans;
  }

 private:
  struct OpMark {
    size_t op = 0;
    std::unique_ptr<TimeMark> begin, end;
  };

  Backend& backend_;
  OpTable table_;
  std::vector<OpMark> marks_;
};

// Runs the window's steps and returns the mean microseconds of one by the host's clock, or nothing
// if interrupted. `begin_window` is called before the first of them.
template <typename BeginWindow>
std::optional<double> TimeWindow(Decoder& decoder, const BenchOptions& options,
                                 const Window& window, const BeginWindow& begin_window) {
  BatchRun run(decoder, options, options.seed);
  if (!run.FillDepth() || !run.Prefill() || !run.Decode(window.before)) return std::nullopt;
  begin_window();
  const auto begin = Clock::now();
  if (!run.Decode(window.steps)) return std::nullopt;
  return 1e6 * SecondsSince(begin) / static_cast<double>(window.steps);
}

std::optional<StepProfile> ProfileByMarks(Decoder& decoder, const BenchOptions& options,
                                          const char* method, int64_t most_steps) {
  const Window window(options, most_steps);
  OpMarks marks(decoder.GetBackend());
  std::optional<ObservedScope<Decoder>> observed;
  const std::optional<double> step_us =
      TimeWindow(decoder, options, window, [&] { observed.emplace(decoder, &marks); });
  if (!step_us) return std::nullopt;
  return PartitionSteps(method, marks.Spans(window.steps), marks.Ops(window.steps), window.steps,
                        *step_us);
}

// Splits decode_step, if the profile has it, into its phases, by stamps of the bench's middle step.
// Returns false if interrupted.
bool AddPhases(Decoder& decoder, const BenchOptions& options, StepProfile& profile) {
  const auto op = std::ranges::find(profile.ops, Name(StepOp::kDecodeStep), &OpTime::op);
  if (op == profile.ops.end()) return true;
  constexpr int kRounds = 8;
  BatchRun run(decoder, options, options.seed);
  if (!run.FillDepth() || !run.Prefill()) return false;
  if (!run.Decode(Window(options, 1).before)) return false;
  PhaseObserver observer(decoder);
  const std::unique_ptr<WorkGraph> step = decoder.CaptureNextStep(observer);
  std::vector<int64_t> stamps;
  for (int round = 0; round < kRounds; ++round) {
    step->Enqueue();
    step->Enqueue();  // whose stamps are read, directly after a whole step
    observer.AppendTo(stamps);
  }
  for (const auto& [phase, share] : SharesOfPhases(stamps, decoder.Spec().num_layers)) {
    op->phases.push_back({.phase = std::string(Name(phase)), .us = share * op->us});
  }
  return true;
}

#if TOKLINE_HAS_CUDA
// Counts the kernels that each op adds to a graph capture.
class KernelCount : public OpObserver {
 public:
  explicit KernelCount(const Backend& backend) : backend_(backend) {}

  void Begin(StepOp op, std::string_view kernel) override {
    Fill(kNoOp);  // the kernels since the last op
    op_ = table_.Count(op, kernel);
  }
  void End() override { Fill(op_); }
  std::vector<OpTime> Ops() const { return table_.Ops(1); }
  const std::vector<size_t>& OpOfPlace() const { return op_of_place_; }

 private:
  void Fill(size_t op) { op_of_place_.resize(static_cast<size_t>(backend_.CapturedKernels()), op); }

  const Backend& backend_;
  OpTable table_;
  size_t op_ = 0;
  std::vector<size_t> op_of_place_;
};

// Enqueues a stamp of the device's clock before the first and after the last op of a step.
class StepStamps : public OpObserver {
 public:
  explicit StepStamps(ClockStamps& stamps) : stamps_(stamps) {}

  void Begin(StepOp op, std::string_view) override {
    op_ = op;
    if (op == StepOp::kEmbedding || op == StepOp::kDecodeStep) stamps_.Stamp(false);
  }
  void End() override {
    if (op_ == StepOp::kSampling) stamps_.Stamp(false);
  }

 private:
  ClockStamps& stamps_;
  StepOp op_ = StepOp::kEmbedding;
};

// Runs the window's steps with a stamp of the device's clock at both ends of each. Calls
// `begin_window` before the first of them. Returns nothing if interrupted.
template <typename BeginWindow>
std::optional<std::vector<int64_t>> StampWindow(Decoder& decoder, const BenchOptions& options,
                                                const Window& window,
                                                const BeginWindow& begin_window) {
  ClockStamps stamps(decoder.GetBackend(), 2 * window.steps + 1);  // one too many would show
  StepStamps at_both_ends(stamps);
  const ObservedScope observed(decoder, &at_both_ends);
  decoder.WarmUp();  // the graphs take the stamps
  const auto restart = [&] {
    begin_window();
    stamps.Restart();
  };
  const bool complete = TimeWindow(decoder, options, window, restart).has_value();
  std::vector<int64_t> read = stamps.Read();
  decoder.DropGraphs();  // they would write stamps after the lifetime of `stamps`
  if (!complete) return std::nullopt;
  return read;
}

// Runs the steps once as a warm-up: the first steps of a decoder may be slower, at batch 8 on an
// H200 by 5 %. Returns false if it was interrupted.
bool WarmWindow(Decoder& decoder, const BenchOptions& options, const Window& window) {
  decoder.WarmUp();
  return TimeWindow(decoder, options, window, [] {}).has_value();
}

StampedSteps MeanOf(const std::vector<std::vector<int64_t>>& runs, int64_t steps) {
  StampedSteps mean;
  for (const std::vector<int64_t>& stamps : runs) {
    const StampedSteps one = ReadStamps(stamps, steps);
    mean.gap_us += one.gap_us / static_cast<double>(runs.size());
    mean.busy_us += one.busy_us / static_cast<double>(runs.size());
  }
  return mean;
}

// Runs the steps of `untraced` once more, traced and with stamps. This shows how much the trace
// lengthens them. Throws RuntimeFailure with the reason if the steps cannot be traced.
std::optional<StepProfile> ProfileByTrace(Decoder& decoder, const BenchOptions& options,
                                          const UntracedSteps& untraced) {
  const Window window(options, kMaxSteps);
  if (!WarmWindow(decoder, options, window)) return std::nullopt;
  KernelTrace trace;
  KernelCount count(decoder.GetBackend());
  const auto traced = StampWindow(decoder, options, window, [&] {
    const std::unique_ptr<WorkGraph> captured = decoder.CaptureNextStep(count);
    trace.Take();  // discards the kernels before the steps
  });
  if (!traced) return std::nullopt;
  std::vector<TracedKernel> kernels = trace.Take();
  // Stamps, and small copies at the ends of a step, are kernels, too.
  std::erase_if(kernels, [](const TracedKernel& kernel) {
    return kernel.name.find(kStagedCopyKernel) != std::string::npos ||
           kernel.name.find(kStampKernel) != std::string::npos;
  });
  const Attribution found =
      AttributeByPosition(std::move(kernels), count.OpOfPlace(), count.Ops(), window.steps);
  if (!found.mismatch.empty()) throw RuntimeFailure(found.mismatch);
  return PartitionSteps("cupti", found.spans, count.Ops(), window.steps, untraced.step_us,
                        TraceCost{.untraced = MeanOf(untraced.stamps_ns, window.steps),
                                  .traced = ReadStamps(*traced, window.steps)});
}
#endif

}  // namespace

std::optional<UntracedSteps> TimeUntraced([[maybe_unused]] Decoder& decoder,
                                          [[maybe_unused]] const BenchOptions& options) {
#if TOKLINE_HAS_CUDA
  constexpr int kTurns = 3;
  const Window window(options, kMaxSteps);
  UntracedSteps untraced;
  if (!WarmWindow(decoder, options, window)) return std::nullopt;
  for (int turn = 0; turn < kTurns; ++turn) {
    decoder.WarmUp();
    const std::optional<double> step_us = TimeWindow(decoder, options, window, [] {});
    if (!step_us) return std::nullopt;
    untraced.step_us += *step_us / kTurns;
    auto stamps_ns = StampWindow(decoder, options, window, [] {});
    if (!stamps_ns) return std::nullopt;
    untraced.stamps_ns.push_back(std::move(*stamps_ns));
  }
  return untraced;
#else
  throw InvalidArgument("this build has no CUDA device whose clock could be read");
#endif
}

std::optional<ProfiledSteps> ProfileSteps(
    Decoder& decoder, const BenchOptions& options,
    [[maybe_unused]] const std::optional<UntracedSteps>& untraced) {
  if (decoder.Options().device == Device::kCpu) {
    std::optional<StepProfile> profile = ProfileByMarks(decoder, options, "clock", kMaxSteps);
    if (!profile) return std::nullopt;
    // Between two ops only the host works: no device could be idle.
    profile->host_gap_us += profile->device_gap_us;
    profile->device_gap_us = 0;
    return ProfiledSteps{.profile = std::move(*profile)};
  }
  std::string note = "its steps were not timed without a trace";
#if TOKLINE_HAS_CUDA
  try {
    if (untraced) {
      std::optional<StepProfile> profile = ProfileByTrace(decoder, options, *untraced);
      if (!profile || !AddPhases(decoder, options, *profile)) return std::nullopt;
      return ProfiledSteps{.profile = std::move(*profile)};
    }
  } catch (const CudaError&) {
    throw;  // an error of the decoder, not of the trace
  } catch (const RuntimeFailure& failure) {
    note = failure.what();
  }
#endif
  decoder.WarmUp();  // lets every op choose its algorithms
  decoder.DropGraphs();
  std::optional<StepProfile> profile = ProfileByMarks(decoder, options, "events", kMaxEventSteps);
  if (!profile || !AddPhases(decoder, options, *profile)) return std::nullopt;
  return ProfiledSteps{.profile = std::move(*profile), .note = std::move(note)};
}

}  // namespace tokline
