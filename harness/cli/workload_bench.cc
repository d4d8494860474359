// Measures a workload: sizes the decoder for it, repeats it, verifies some of its texts, and writes
// one record row.
#include "harness/cli/workload_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "harness/cli/latency_text.h"
#include "harness/cli/memory_text.h"
#include "harness/cli/output_file.h"
#include "harness/cli/rate_table.h"
#include "harness/cli/status_line.h"
#include "harness/engine/make_decoder.h"
#include "harness/measure/conversations.h"
#include "harness/measure/nvml.h"
#include "harness/measure/text_judge.h"
#include "harness/measure/workload.h"
#include "harness/measure/workload_run.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/record/memory_report.h"
#include "harness/text/stop_strings.h"
#include "harness/text/tokenizer.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

// Indexed by ChunkSharing.
constexpr std::array<std::string_view, 3> kSharingNames = {"never", "auto", "always"};

// Says how to keep random ids within the vocabulary; empty if the ids are not random.
std::string HowToDraw(const Workload& workload, size_t i, int64_t vocab_size) {
  if (workload.name.starts_with("synthetic")) {
    return StrCat("; use ids=", vocab_size, " to draw from all of them");
  }
  if (workload.requests[i].line == 0) return "";
  return StrCat("; add \"ids\": ", vocab_size, " to prompt_tokens to draw from all of them");
}

// Refuses a request that the model cannot run, by name, before anything runs.
void RequireFits(const Workload& workload, const ModelSpec& spec) {
  for (size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i].request;
    const int32_t most = *std::ranges::max_element(request.prompt);
    const std::string where = workload.Where(i);
    Require(most < spec.vocab_size, where, " has id ", most, "; the vocabulary has ids 0 to ",
            spec.vocab_size - 1, HowToDraw(workload, i, spec.vocab_size));
    for (const int32_t id : request.stop_ids) {
      Require(id >= 0 && id < spec.vocab_size, where, " stops at id ", id,
              "; the vocabulary has ids 0 to ", spec.vocab_size - 1);
    }
    const int64_t context = workload.requests[i].Context();
    Require(context <= spec.max_positions, where, " takes ", context,
            " tokens; the model has positions for ", spec.max_positions);
  }
}

// Loads the model's tokenizer, which the workload needs for its `texts`.
Tokenizer LoadTokenizer(const std::string& workload, const char* texts, const LoadedModel& model) {
  const std::filesystem::path file = model.checkpoint.Dir() / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw RuntimeFailure(StrCat("the workload ", workload, " has ", texts,
                                ", which need the model's tokenizer; there is no ", file.string()));
  }
  return Tokenizer::Load(file);
}

// A workload, and what it was made with.
struct LoadedWorkload {
  Workload workload;
  std::optional<Tokenizer> tokenizer{};               // if the workload has texts
  std::optional<ConversationCounts> conversations{};  // if it was made of them
};

LoadedWorkload LoadWorkload(const WorkloadFlags& flags, const LoadedModel& model) {
  LoadedWorkload loaded;
  if (HasConversations(flags.workload)) {
    ConversationLimits limits{.max_context = model.spec.max_positions};
    limits.requests = flags.requests.value_or(limits.requests);
    loaded.tokenizer = LoadTokenizer(flags.workload, "conversations", model);
    loaded.workload = ReadConversations(
        flags.workload,
        [&](std::string_view text, bool is_prompt) {
          return loaded.tokenizer->Encode(text, {.add_special_tokens = is_prompt});
        },
        limits, loaded.conversations.emplace());
    return loaded;
  }
  Require(!flags.requests, "--requests needs a file of conversations; ", Quoted(flags.workload),
          " is none");
  loaded.workload = MakeWorkload(flags.workload);
  if (loaded.workload.HasStopStrings()) {
    loaded.tokenizer = LoadTokenizer(loaded.workload.name, "stop strings", model);
  }
  return loaded;
}

// Detects stop strings in the same way as `tokline generate`.
StopReader ReadUntil(const Tokenizer& tokenizer, std::span<const std::string> stops) {
  return [text = tokenizer.Stream({.skip_special = true}),
          found = StopStrings({stops.begin(), stops.end()})](int32_t token) mutable {
    found.Push(text.Push(token));
    return !found.Found().empty();
  };
}

Json ToJson(const ConversationCounts& counts) {
  return {{"read", counts.read},
          {"unanswered", counts.unanswered},
          {"empty", counts.empty},
          {"too_long", counts.too_long}};
}

// A whole number without a point, so that labels are short.
Json RateJson(double rate) {
  if (std::isinf(rate)) return "inf";
  return rate == std::floor(rate) ? Json(static_cast<int64_t>(rate)) : Json(rate);
}

Json ShapeOf(const Workload& workload, const WorkloadFlags& flags, const KvSize& kv,
             const DecoderOptions& options) {
  Json shape{{"name", workload.name},
             {"hash", HashOf(workload)},
             {"new_tokens", workload.NewTokens()},
             {"max_batch", options.max_batch},
             {"token_budget", options.token_budget},
             {"page_size", options.page_size},
             {"reuse", flags.reuse},
             {"kv_limit", kv.ToJson()}};
  if (options.sharing != ChunkSharing::kWhenItPays) {
    shape["sharing"] = kSharingNames[static_cast<size_t>(options.sharing)];
  }
  return shape;
}

// Every repeat contributes its samples; the other figures come from the repeat with the median
// time.
void TakeFigures(std::vector<WorkloadResult>& results, WorkloadMeasurement& measurement) {
  for (const WorkloadResult& result : results) {
    measurement.samples.push_back({.total_s = result.total_s,
                                   .prompt_tokens = result.prompt_tokens,
                                   .new_tokens = result.new_tokens});
    measurement.memory_points.insert(measurement.memory_points.end(), result.memory.begin(),
                                     result.memory.end());
  }
  const auto middle = results.begin() + static_cast<int64_t>((results.size() - 1) / 2);
  std::ranges::nth_element(results, middle, {}, &WorkloadResult::total_s);
  measurement.serving = middle->serving;
  if (!measurement.promise) return;
  measurement.promise->good_requests = std::ranges::count_if(
      middle->waits,
      [&](const RequestLatency& wait) { return measurement.promise->bound.IsMetBy(wait); });
}

// Measures the workload, runs each disturbed repeat once more, and has some of the texts judged.
void Measure(const LoadedModel& model, const DecoderOptions& options, const Workload& workload,
             const MakeStopReader& make_stop_reader, int32_t repeats,
             const Fingerprint& fingerprint, WorkloadMeasurement& measurement, Json& memory) {
  std::vector<WorkloadResult> results;
  std::vector<BenchText> texts;
  {
    const MemoryWatch watch(options.device);
    Decoder decoder = MakeDecoder(model, options);
    measurement.memory = decoder.Memory();
    measurement.memory_points.push_back(MemoryOf(decoder, 0));
    measurement.warm_up_s = WarmUp(decoder, workload, InterruptFlag());
    measurement.memory_points.push_back(MemoryOf(decoder, 0));
    for (int32_t repeat = 0; repeat < repeats && !InterruptRequested(); ++repeat) {
      constexpr int kAttempts = 2;
      for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const GpuState before = StateOf(fingerprint);
        ProgressLine progress;
        WorkloadResult result = RunWorkload(
            decoder, workload, InterruptFlag(), make_stop_reader,
            progress.Steps(options.device, workload.PromptTokens() + workload.NewTokens(),
                           StrCat("tokens of repeat ", repeat + 1, " of ", repeats)));
        const std::string disturbed = Disturbance(before, StateOf(fingerprint));
        if (result.interrupted) break;
        if (!disturbed.empty() && attempt + 1 < kAttempts) continue;
        if (!disturbed.empty()) measurement.trouble.disturbed = disturbed;
        results.push_back(std::move(result));
        break;
      }
    }
    memory = watch.Report(decoder);
  }
  measurement.trouble.interrupted = InterruptRequested();
  if (results.empty() || measurement.trouble.interrupted) return;
  const Judgement judgement =
      TextJudge(model, options).Judge(results.back().texts, InterruptFlag());
  const bool drawn = std::ranges::any_of(workload.requests, [](const WorkloadRequest& one) {
    return one.request.rule.temperature > 0;
  });
  measurement.judged = {
      .tokens = judgement.tokens, .mean_regret = judgement.mean_regret, .drawn = drawn};
  measurement.trouble.interrupted = InterruptRequested();
  TakeFigures(results, measurement);
}

// Describes the growth of host memory: after the warm-up, after a tenth of the requests, at the
// end.
std::string GrowthText(const std::vector<MemoryPoint>& points) {
  const auto heap = [](const MemoryPoint& point) {
    return BytesText(point.host.heap_in_use) + " heap";
  };
  std::string text =
      StrCat(heap(points.front()), " at the start, ", heap(points[1]), " after the warm-up");
  if (points.size() > 2) {
    text += StrCat(", ", heap(points[2]), " after ", points[2].requests, " requests, ",
                   heap(points.back()), " at the end");
  }
  return text;
}

// "inf" or a number of requests per second.
double ParseRate(std::string_view flag, std::string_view text) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  if (text == "inf") return std::numeric_limits<double>::infinity();
  const double rate = ParseReal(flag, text);
  Require(rate >= kLeast && rate <= kMost, flag, " has ", Quoted(text), "; a rate is ", kLeast,
          " to ", kMost, " requests per second, or inf");
  return rate;
}

// Calls `take` with each part of a list that commas separate.
void ForEachPart(std::string_view text, const auto& take) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    take(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::vector<double> ParseRates(std::string_view flag, std::string_view text) {
  constexpr size_t kMost = 100;
  std::vector<double> rates;
  ForEachPart(text, [&](std::string_view part) {
    Require(!part.empty(), flag, " is ", Quoted(text), "; one of its rates is empty");
    const double rate = ParseRate(flag, part);
    Require(std::ranges::find(rates, rate) == rates.end(), flag, " has ", Quoted(part), " twice");
    rates.push_back(rate);
  });
  Require(rates.size() <= kMost, flag, " has ", rates.size(), " rates; at most ", kMost,
          " are allowed");
  return rates;
}

// "ttft=200,itl=20", in milliseconds; either may be absent.
LatencyBound ParseLatencyBound(std::string_view flag, std::string_view text) {
  constexpr double kMostMs = 1e9;
  LatencyBound bound;
  ForEachPart(text, [&](std::string_view part) {
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    Require(equals != part.npos && (name == "ttft" || name == "itl"), flag, " has ", Quoted(part),
            "; it takes ttft=MS, itl=MS or both");
    std::optional<double>& target = name == "ttft" ? bound.first_token_s : bound.mean_between_s;
    Require(!target, flag, " has ", name, " twice");
    const double ms = ParseReal(flag, part.substr(equals + 1));
    Require(ms > 0 && ms <= kMostMs, flag, " has ", Quoted(part),
            "; a latency is more than 0 and at most ", kMostMs, " ms");
    target = 1e-3 * ms;
  });
  return bound;
}

// The figures of a row that was not refused, as lines for people.
std::string WorkloadText(const WorkloadMeasurement& m, const WorkloadFigures& figures) {
  const ServingFigures& serving = m.serving;
  const auto count = [](int64_t value) { return static_cast<long long>(value); };
  const auto pages = static_cast<double>(serving.kv_pages.all);
  const auto& [first, between, end] = serving.latencies;
  char text[1400];
  std::snprintf(
      text, sizeof(text),
      "output tok/s      %12.1f\n"
      "total tok/s       %12.1f   prompt and output\n"
      "time              %12.3f s, median of %zu: %lld requests, %lld + %lld tokens\n"
      "warm-up           %12.3f s, not counted\n"
      "latency in ms        %s\n"
      "first token          %s\n"
      "between tokens       %s\n"
      "end to end           %s\n"
      "KV cache          %11.1f%% mean, %.1f%% at most, of %lld pages\n"
      "preemptions       %12lld   %lld tokens computed again\n"
      "reused            %12lld   tokens\n"
      "decode reads      %12.1f MB of K and V, %.1f MB without sharing\n"
      "host              %11.1f%% of the time, %.0f us per step\n"
      "steps             %12lld   %lld as graphs\n"
      "verified          %12lld   tokens, mean regret %.4f\n",
      figures.output_tok_s, figures.total_tok_s, figures.total_s, m.samples.size(),
      count(m.requests), count(m.prompt_tokens), count(m.samples[0].new_tokens), m.warm_up_s,
      kLatencyHeader, LatencyCells(first).c_str(), LatencyCells(between).c_str(),
      LatencyCells(end).c_str(), 100 * serving.kv_pages.mean / pages,
      100 * static_cast<double>(serving.kv_pages.most) / pages, count(serving.kv_pages.all),
      count(serving.tokens.preemptions), count(serving.tokens.recomputed),
      count(serving.tokens.reused), 1e-6 * static_cast<double>(serving.decode_reads.bytes),
      1e-6 * static_cast<double>(serving.decode_reads.unshared), 100 * serving.host.share,
      serving.host.step_us, count(serving.steps.all), count(serving.steps.graphs),
      count(m.judged.tokens), m.judged.mean_regret);
  std::string lines = text;
  if (m.promise) {
    std::snprintf(text, sizeof(text),
                  "goodput           %12.3f requests per second; %lld of %lld met the bound\n",
                  *figures.goodput_req_s, count(m.promise->good_requests), count(m.requests));
    lines += text;
  }
  return lines + (first->p99 && between && between->p99 ? "" : kTooFew);
}

}  // namespace

void WorkloadFlags::AddTo(std::vector<Flag>& flags) {
  flags.insert(
      flags.end(),
      {{"--workload", "WHAT",
        "measure requests with continuous batching: nano-vllm, synthetic:PARTS, a JSON lines "
        "file or a ShareGPT file",
        TextInto(workload)},
       {"--requests", "N", "with a ShareGPT file: conversations to take at most (default: 256)",
        IntegerInto(requests, 1, kMaxRequests)},
       {"--max-batch", "N", "with --workload: requests that run at a time (default: 256)",
        IntegerInto(max_batch, 1, kMaxBatch)},
       {"--token-budget", "N", "with --workload: prompt tokens per step (default: 8192)",
        IntegerInto(token_budget, 1, int64_t{1} << 20)},
       {"--reuse", "", "with --workload: prompts with the same prefix share its K and V",
        SwitchInto(reuse)},
       {"--sharing", "never|auto|always",
        "with --reuse: read shared prefixes once per decode step (default: auto, if it pays)",
        [this](auto flag, auto text) {
          sharing = static_cast<ChunkSharing>(ParseChoice(flag, text, kSharingNames));
        }},
       {"--rates", "R,...,inf",
        "with --workload: run it at each of these requests per second, which arrive at random",
        [this](auto flag, auto text) { rates = ParseRates(flag, text); }},
       {"--slo", "ttft=MS,itl=MS",
        "with --workload: count requests whose first token and mean time between tokens meet both",
        [this](auto flag, auto text) { slo = ParseLatencyBound(flag, text); }}});
}

int RunWorkloadBench(const CommandLine& line, const WorkloadFlags& flags, const WorkloadRun& with) {
  Require(flags.reuse || !flags.sharing, "--sharing needs --reuse; without it nothing is shared");
  OutputFile file(with.record.json);
  RunRecord record(with.record.record);
  const LoadedModel model = with.run.Load();
  ReportExtraTensors(model);
  LoadedWorkload loaded = LoadWorkload(flags, model);
  Workload& workload = loaded.workload;
  RequireFits(workload, model.spec);
  Require(flags.rates.empty() || !workload.HasArrivals(),
          "--rates would replace the arrivals that ", workload.name, " states");
  if (!flags.rates.empty()) workload.SetRate(std::ranges::min(flags.rates), with.seed);
  const auto batch = static_cast<int32_t>(
      std::min<int64_t>(flags.max_batch, static_cast<int64_t>(workload.requests.size())));
  DecoderOptions options = with.run.Options(model.spec, batch, workload.MaxContext());
  options.token_budget = flags.token_budget;
  options.reuse = flags.reuse;
  options.sharing = flags.sharing.value_or(options.sharing);
  options.delayed = DelayedBy(with.op_delay, options.device);
  DecoderConfig(model.spec, options, {});
  with.record.RequirePeaksOf(options.device);
  SizeKvForWorkload(with.run.kv, model, workload, options);

  CatchInterrupts();
  RunHeader header =
      MakeRunHeader(line, "tokline bench", options.device, with.record, options.ranks);
  header.injected = with.injected;
  record.Start(header);
  const std::string device_name = DeviceName(options.device, header.fingerprint);
  const WorkloadMeasurement unmeasured{
      .origin = {.run_id = header.run_id,
                 .implementation = with.run.Implementation(),
                 .dtype = std::string(Name(options.dtype)),
                 .device = device_name},
      .model = model.Name(),
      .conversations = loaded.conversations ? ToJson(*loaded.conversations) : Json(nullptr)};
  Print(StrCat(
      model.Name(), ", ", Name(options.dtype), ", ", unmeasured.origin.implementation, " on ",
      device_name, "\nworkload ", workload.name, ": ", workload.requests.size(),
      " requests, at most ", batch, " at a time\n",
      loaded.conversations ? loaded.conversations->Text(std::ssize(workload.requests)) + "\n" : "",
      header.injected.is_null() ? "" : StrCat("injected: ", header.injected.dump(), "\n"),
      flags.rates.empty() ? "" : kRateHeader));
  const auto make_stop_reader = [&](std::span<const std::string> stops) {
    return ReadUntil(*loaded.tokenizer, stops);
  };
  const auto measure = [&](std::optional<double> rate, Json& memory) {
    WorkloadMeasurement measurement = unmeasured;
    if (rate) workload.SetRate(*rate, with.seed);
    measurement.requests = std::ssize(workload.requests);
    measurement.prompt_tokens = workload.PromptTokens();
    measurement.shape = ShapeOf(workload, flags, with.run.kv, options);
    if (rate) measurement.shape["rate"] = RateJson(*rate);
    if (flags.slo) measurement.promise.emplace().bound = *flags.slo;
    Measure(model, options, workload, make_stop_reader,
            with.repeats.value_or(options.device == Device::kCuda ? 3 : 1), header.fingerprint,
            measurement, memory);
    return measurement;
  };
  Json reports = Json::array(), memory;
  std::vector<WorkloadMeasurement> measured;
  const size_t count = std::max<size_t>(1, flags.rates.size());
  for (size_t i = 0; i < count && (i == 0 || !InterruptRequested()); ++i) {
    const auto rate = flags.rates.empty() ? std::nullopt : std::optional(flags.rates[i]);
    const WorkloadMeasurement& one = measured.emplace_back(measure(rate, memory));
    const WorkloadFigures figures = FiguresOf(one);
    if (rate) {
      Print(RateLine(*rate, one));
    } else {
      Print(figures.refusal.empty() ? WorkloadText(one, figures)
                                    : StrCat("refused: ", figures.refusal, "\n"));
    }
    reports.push_back(WorkloadRow(one));
    record.Add(reports.back(), figures.refusal.empty());
    reports.back()["memory_report"] = memory;
  }
  const bool too_few = !flags.rates.empty() && workload.requests.size() < 100;
  Print(StrCat(too_few ? kTooFew : "", BestRate(flags.rates, measured), "memory            ",
               MemoryText(memory), "\n"));
  if (flags.rates.empty() && record.Refused() == 0) {
    Print(StrCat("growth            ", GrowthText(measured[0].memory_points), "\n"));
  }
  const bool interrupted = measured.size() < count || measured.back().trouble.interrupted;
  record.Finish(interrupted);
  // Removes the fields that make it a record: a file that holds records cannot be replaced.
  for (Json& report : reports) {
    for (const char* key : {"schema", "kind", "run_id"}) report.erase(key);
  }
  file.CommitJson(flags.rates.empty() ? reports[0] : Json{{"rows", reports}});
  if (interrupted) return kInterruptedExit;
  if (record.Refused() > 0 && flags.rates.empty()) {
    throw RuntimeFailure(StrCat("the row was refused: ", FiguresOf(measured[0]).refusal));
  }
  if (record.Refused() > 0) {
    throw RuntimeFailure(StrCat(record.Refused(), " of ", count, " rows were refused"));
  }
  return kSuccess;
}

}  // namespace tokline
