// Runs the rounds of an ablation: both decoders in an order that is drawn per round, then the
// ablated ops alone, launched by an observer that skips all other ops of the step.
#include "harness/measure/ablation_bench.h"

#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include "harness/measure/batch_run.h"
#include "harness/measure/timing.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Times some ops of a decoder's decode step repeatedly.
class OpsAlone {
 public:
  OpsAlone(Decoder& decoder, StepOpSet ops, const BenchOptions& bench)
      : decoder_(decoder),
        bench_(bench),
        only_({.wanted = ops, .prefetched = ops}),
        run_(decoder, bench, bench.seed),
        begin_(decoder.GetBackend().MakeTimeMark()),
        end_(decoder.GetBackend().MakeTimeMark()) {}

  // Returns false if it was interrupted.
  bool Prepare() {
    if (!run_.FillDepth() || !run_.Prefill() || !run_.Decode((bench_.new_tokens - 1) / 2))
      return false;
    step_ = decoder_.CaptureNextStep(all_);
    ops_ = decoder_.CaptureNextStep(only_);
    TimeOnce();
    return true;
  }
  double MedianUs() {
    constexpr int kReplays = 3;
    std::vector<double> us;
    for (int i = 0; i < kReplays; ++i) us.push_back(TimeOnce());
    return Median(std::move(us));
  }

 private:
  double TimeOnce() {
    step_->Enqueue();
    begin_->Record();
    ops_->Enqueue();
    end_->Record();
    decoder_.GetBackend().Synchronize();
    return 1e-3 * end_->NsSince(*begin_);
  }

  Decoder& decoder_;
  const BenchOptions& bench_;
  FollowingObserver all_{
      {.wanted = StepOpSet(AllStepOps()), .prefetched = StepOpSet(AllStepOps())}};
  FollowingObserver only_;
  BatchRun run_;
  std::unique_ptr<WorkGraph> step_, ops_;
  std::unique_ptr<TimeMark> begin_, end_;
};

// Runs one round of both sides in a random order. Returns false if either was interrupted.
bool InDrawnOrder(std::mt19937_64& rng, const std::function<bool()>& with,
                  const std::function<bool()>& without) {
  const bool with_first = rng() % 2 == 0;
  return with_first ? with() && without() : without() && with();
}

}  // namespace

AblationRounds RunAblation(Decoder& with, Decoder& without, StepOpSet ops,
                           const BenchOptions& bench) {
  Require(bench.repeats >= 1, "rounds is ", bench.repeats, "; it must be >= 1");
  RequireFits(with, bench);
  RequireFits(without, bench);
  AblationRounds rounds;
  std::mt19937_64 rng(bench.seed);
  const auto repeat = [&](Decoder& decoder, AblationSide& side, uint64_t seed, bool counted) {
    auto run = TimeRepeat(decoder, bench, seed);
    if (!run) return false;
    side.texts = std::move(run->texts);
    if (!counted) return true;
    side.decode_ms.push_back(1e3 * run->sample.decode_s /
                             static_cast<double>(bench.new_tokens - 1));
    side.prefill_ms.push_back(1e3 * run->sample.prefill_s);
    return true;
  };
  for (int32_t round = 0; round <= bench.repeats && !rounds.interrupted; ++round) {
    const uint64_t seed = bench.seed + static_cast<uint64_t>(round);
    rounds.interrupted = !InDrawnOrder(
        rng, [&] { return repeat(with, rounds.with, seed, round > 0); },
        [&] { return repeat(without, rounds.without, seed, round > 0); });
  }
  if (ops.Empty() || rounds.interrupted) return rounds;

  OpsAlone alone_with(with, ops, bench), alone_without(without, ops, bench);
  rounds.interrupted = !alone_with.Prepare() || !alone_without.Prepare();
  for (int32_t round = 0; round < bench.repeats && !rounds.interrupted; ++round) {
    const auto time = [&](OpsAlone& alone, AblationSide& side) {
      side.alone_us.push_back(alone.MedianUs());
      return bench.interrupted == nullptr || !bench.interrupted->load();
    };
    rounds.interrupted = !InDrawnOrder(
        rng, [&] { return time(alone_with, rounds.with); },
        [&] { return time(alone_without, rounds.without); });
  }
  return rounds;
}

AblationRounds MeanOfOrders(const AblationRounds& one, const AblationRounds& other) {
  const auto mean = [](const std::vector<double>& a, const std::vector<double>& b) {
    Require(a.size() == b.size(), "one order has ", a.size(), " rounds, the other ", b.size());
    std::vector<double> means;
    for (size_t i = 0; i < a.size(); ++i) means.push_back(std::sqrt(a[i] * b[i]));
    return means;
  };
  const auto side = [&](const AblationSide& a, const AblationSide& b) {
    AblationSide both{.decode_ms = mean(a.decode_ms, b.decode_ms),
                      .prefill_ms = mean(a.prefill_ms, b.prefill_ms),
                      .alone_us = mean(a.alone_us, b.alone_us),
                      .texts = a.texts};
    both.texts.insert(both.texts.end(), b.texts.begin(), b.texts.end());
    return both;
  };
  return {.with = side(one.with, other.with), .without = side(one.without, other.without)};
}

}  // namespace tokline
