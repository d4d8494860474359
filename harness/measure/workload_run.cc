// Feeds a workload's requests to a decoder as they arrive, steps it until all have ended, and
// records the times of their tokens, the memory and some of the texts.
#include "harness/measure/workload_run.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "harness/engine/token_times.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Records the times of a run's tokens and keeps some of its texts.
class TokenLog {
 public:
  explicit TokenLog(const Workload& workload) : workload_(workload) {
    const size_t count = workload.requests.size();
    latencies_.Reserve(count, static_cast<size_t>(workload.NewTokens()));
    waits_.reserve(count);
    for (const size_t index : {size_t{0}, count / 3, count - count / 3 - 1, count - 1}) {
      kept_.try_emplace(index);
    }
  }

  void Submitted(SequenceId id, size_t index, Clock::time_point arrival, StopReader stops) {
    progress_.emplace(
        id, Progress{.index = index, .times = TokenTimes(arrival), .stops = std::move(stops)});
  }
  // Returns whether the token ends its request.
  bool Take(const NewToken& token, Clock::time_point now) {
    const auto found = progress_.find(token.sequence);
    Progress& one = found->second;
    latencies_.Add(one.times, now);
    if (const auto kept = kept_.find(one.index); kept != kept_.end()) {
      kept->second.push_back(token.token);
    }
    const bool ended = token.finish != Finish::kNone || (one.stops && one.stops(token.token));
    if (!ended) return false;
    latencies_.End(one.times);
    waits_.push_back(
        {.first_token_s = one.times.FirstTokenS(), .mean_between_s = one.times.MeanBetweenS()});
    progress_.erase(found);
    return true;
  }
  // Returns the requests that have not ended.
  std::vector<SequenceId> Unfinished() const {
    std::vector<SequenceId> ids;
    for (const auto& [id, one] : progress_) ids.push_back(id);
    return ids;
  }
  std::vector<RequestLatency> Waits() { return std::move(waits_); }
  LatencyFigures Latencies() { return std::move(latencies_).Figures(); }
  std::vector<BenchText> Texts() const {
    std::vector<BenchText> texts;
    for (const auto& [index, tokens] : kept_) {
      const Request& request = workload_.requests[index].request;
      texts.push_back({.prompt = request.prompt, .tokens = tokens, .rule = request.rule});
    }
    return texts;
  }

 private:
  struct Progress {
    size_t index = 0;
    TokenTimes times;  // since its arrival
    StopReader stops;  // empty if there are no stop strings
  };

  const Workload& workload_;
  std::unordered_map<SequenceId, Progress> progress_;
  TokenLatencies latencies_;
  std::vector<RequestLatency> waits_;
  std::map<size_t, std::vector<int32_t>> kept_;  // tokens by index of the request
};

}  // namespace

MemoryPoint MemoryOf(Decoder& decoder, int64_t requests) {
  const Scheduler& schedule = decoder.Schedule();
  MemoryPoint point{.requests = requests,
                    .host = ReadProcessMemory(),
                    .device_free = std::nullopt,
                    .sequences = schedule.NumSequences(),
                    .chunks = schedule.Chunks().NumChunks(),
                    .chunk_ids = schedule.Chunks().EndId(),
                    .kv_pages = schedule.Pages().NumPages() - schedule.Pages().NumFree()};
  Backend& backend = decoder.GetBackend();
  if (backend.device() == Device::kCuda) point.device_free = backend.FreeBytes();
  return point;
}

double WarmUp(Decoder& decoder, const Workload& workload, const std::atomic<bool>* interrupted) {
  const auto begin = Clock::now();
  decoder.WarmUp();
  // All requests are added before any runs, so that one that does not fit fails at once.
  std::vector<SequenceId> taken;
  for (size_t i = 0; i < workload.requests.size(); ++i) {
    try {
      taken.push_back(decoder.Submit(workload.requests[i].request));
    } catch (const InvalidArgument& error) {
      for (const SequenceId id : taken) decoder.RemoveSequence(id);
      throw InvalidArgument(StrCat(workload.Where(i), ": ", error.what()));
    }
  }
  for (int step = 0; step < 3 && !(interrupted != nullptr && interrupted->load()); ++step) {
    decoder.Step();
  }
  decoder.Flush();
  for (const SequenceId id : taken) {
    if (decoder.Has(id)) decoder.RemoveSequence(id);
  }
  return SecondsSince(begin);
}

WorkloadResult RunWorkload(Decoder& decoder, const Workload& workload,
                           const std::atomic<bool>* interrupted,
                           const MakeStopReader& make_stop_reader,
                           const std::function<void(int64_t)>& on_step) {
  Require(make_stop_reader || !workload.HasStopStrings(), "the workload ", workload.name,
          " has stop strings, which need a reader of its texts");
  WorkloadResult result;
  const auto is_interrupted = [&] { return interrupted != nullptr && interrupted->load(); };
  decoder.EvictIdle();
  TokenLog log(workload);
  const SchedulerCounts before = decoder.Schedule().Counts();
  const double waited_before_s = decoder.WaitSeconds();
  const int64_t graphs_before = decoder.GraphSteps();
  const DecodeReads reads_before = decoder.Reads();
  const auto tenth = static_cast<int64_t>((workload.requests.size() + 9) / 10);
  double page_steps = 0;
  const auto begin = Clock::now();
  const auto take = [&](std::span<const NewToken> tokens) {
    const auto now = Clock::now();
    for (const NewToken& token : tokens) {
      ++result.new_tokens;
      if (!log.Take(token, now)) continue;
      if (token.finish == Finish::kNone) decoder.RemoveSequence(token.sequence);
      if (++result.requests % tenth == 0) {
        result.memory.push_back(MemoryOf(decoder, result.requests));
      }
    }
  };
  double idle_s = 0;
  for (size_t next = 0; !is_interrupted();) {
    const double now_s = SecondsSince(begin);
    for (; next < workload.requests.size() && workload.requests[next].arrival_s <= now_s; ++next) {
      const WorkloadRequest& one = workload.requests[next];
      const auto arrival = begin + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(one.arrival_s));
      log.Submitted(decoder.Submit(one.request), next, arrival,
                    one.stop.empty() ? StopReader() : make_stop_reader(one.stop));
      result.prompt_tokens += static_cast<int64_t>(one.request.prompt.size());
    }
    if (!decoder.HasWork()) {
      take(decoder.Flush());
      if (next == workload.requests.size()) break;
      constexpr double kNapS = 1e-3;  // short enough to notice an interruption
      const double wait_s = std::min(kNapS, workload.requests[next].arrival_s - now_s);
      const auto napped = Clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(wait_s));
      idle_s += SecondsSince(napped);  // a nap lasts longer than was asked for
      continue;
    }
    const StepReport step = decoder.Step();
    take(step.tokens);
    if (on_step) on_step(step.prefill_tokens + step.decode_rows);
    const int64_t in_use = decoder.Pages().NumPages() - decoder.Pages().NumFree() -
                           decoder.Schedule().Chunks().IdlePages();
    page_steps += static_cast<double>(in_use);
    result.serving.kv_pages.most = std::max(result.serving.kv_pages.most, in_use);
  }
  result.total_s = SecondsSince(begin);
  result.interrupted = is_interrupted();
  take(decoder.Flush());
  for (const SequenceId id : log.Unfinished()) decoder.RemoveSequence(id);

  const double waited_s = decoder.WaitSeconds() - waited_before_s;
  const double host_s = std::max(0.0, result.total_s - waited_s - idle_s);
  const SchedulerCounts& counts = decoder.Schedule().Counts();
  ServingFigures& serving = result.serving;
  serving.tokens = {.preemptions = counts.preemptions - before.preemptions,
                    .recomputed = counts.recomputed_tokens - before.recomputed_tokens,
                    .reused = counts.reused_tokens - before.reused_tokens};
  serving.steps = {.all = counts.steps - before.steps,
                   .graphs = decoder.GraphSteps() - graphs_before};
  serving.decode_reads = {
      .bytes = (decoder.Reads().tokens - reads_before.tokens) * decoder.KvTokenBytes(),
      .unshared = (decoder.Reads().unshared_tokens - reads_before.unshared_tokens) *
                  decoder.KvTokenBytes()};
  const auto steps = static_cast<double>(std::max<int64_t>(1, serving.steps.all));
  serving.kv_pages.all = decoder.Pages().NumPages();
  serving.kv_pages.mean = page_steps / steps;
  serving.host = {.share = host_s / result.total_s, .step_us = 1e6 * host_s / steps};
  serving.latencies = log.Latencies();
  result.waits = log.Waits();
  result.texts = log.Texts();
  return result;
}

}  // namespace tokline
