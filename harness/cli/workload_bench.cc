// Measures a workload: sizes the decoder for it, repeats it, verifies some of its texts, and writes
// one record row.
#include "harness/cli/workload_bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "harness/cli/latency_text.h"
#include "harness/cli/memory_text.h"
#include "harness/cli/output_file.h"
#include "harness/cli/status_line.h"
#include "harness/engine/make_decoder.h"
#include "harness/measure/nvml.h"
#include "harness/measure/text_judge.h"
#include "harness/measure/workload.h"
#include "harness/measure/workload_run.h"
#include "harness/platform/interrupt.h"
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
    const int64_t context = workload.requests[i].Context();
    Require(context <= spec.max_positions, where, " takes ", context,
            " tokens; the model has positions for ", spec.max_positions);
  }
}

// Loads the model's tokenizer if the workload needs one.
std::optional<Tokenizer> LoadTokenizer(const Workload& workload, const LoadedModel& model) {
  if (!workload.HasStopStrings()) return std::nullopt;
  const std::filesystem::path file = model.checkpoint.Dir() / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw RuntimeFailure(StrCat("the workload ", workload.name,
                                " has stop strings, which need the model's tokenizer; there is no ",
                                file.string()));
  }
  return Tokenizer::Load(file);
}

// Detects stop strings in the same way as `tokline generate`.
StopReader ReadUntil(const Tokenizer& tokenizer, std::span<const std::string> stops) {
  return [text = tokenizer.Stream({.skip_special = true}),
          found = StopStrings({stops.begin(), stops.end()})](int32_t token) mutable {
    found.Push(text.Push(token));
    return !found.Found().empty();
  };
}

Json ShapeOf(const Workload& workload, const WorkloadFlags& flags, const KvSize& kv,
             const DecoderOptions& options) {
  Json shape{{"name", workload.name},
             {"hash", HashOf(workload)},
             {"requests", workload.requests.size()},
             {"prompt_tokens", workload.PromptTokens()},
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
        WorkloadResult result = RunWorkload(decoder, workload, InterruptFlag(), make_stop_reader);
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

// The figures of a row that stands, as lines to read.
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
      "time              %12.3f s for %lld requests, %lld prompt and %lld new tokens, median of "
      "%zu\n"
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
      figures.output_tok_s, figures.total_tok_s, figures.total_s,
      m.shape["requests"].get<long long>(), m.shape["prompt_tokens"].get<long long>(),
      count(m.samples[0].new_tokens), m.samples.size(), m.warm_up_s, kLatencyHeader,
      LatencyCells(first).c_str(), LatencyCells(between).c_str(), LatencyCells(end).c_str(),
      100 * serving.kv_pages.mean / pages, 100 * static_cast<double>(serving.kv_pages.most) / pages,
      count(serving.kv_pages.all), count(serving.tokens.preemptions),
      count(serving.tokens.recomputed), count(serving.tokens.reused),
      1e-6 * static_cast<double>(serving.decode_reads.bytes),
      1e-6 * static_cast<double>(serving.decode_reads.unshared), 100 * serving.host.share,
      serving.host.step_us, count(serving.steps.all), count(serving.steps.graphs),
      count(m.judged.tokens), m.judged.mean_regret);
  return text + std::string(first->p99 && between && between->p99 ? "" : kTooFew);
}

}  // namespace

void WorkloadFlags::AddTo(std::vector<Flag>& flags) {
  flags.insert(
      flags.end(),
      {{"--workload", "WHAT",
        "measure requests with continuous batching: nano-vllm, synthetic:PARTS or a JSON lines "
        "file",
        TextInto(workload)},
       {"--max-batch", "N", "with --workload: requests that run at a time (default: 256)",
        IntegerInto(max_batch, 1, 4096)},
       {"--token-budget", "N", "with --workload: prompt tokens per step (default: 8192)",
        IntegerInto(token_budget, 1, int64_t{1} << 20)},
       {"--reuse", "", "with --workload: prompts with the same prefix share its K and V",
        SwitchInto(reuse)},
       {"--sharing", "never|auto|always",
        "with --reuse: read shared prefixes once per decode step (default: auto, if it pays)",
        [this](auto flag, auto text) {
          sharing = static_cast<ChunkSharing>(ParseChoice(flag, text, kSharingNames));
        }}});
}

int RunWorkloadBench(const CommandLine& line, const WorkloadFlags& flags, const WorkloadRun& with) {
  Require(flags.reuse || !flags.sharing, "--sharing needs --reuse; without it nothing is shared");
  std::optional<OutputFile> file;
  if (!with.record.json.empty()) file.emplace(with.record.json);
  RunRecord record(with.record.record);
  const Workload workload = MakeWorkload(flags.workload);
  const LoadedModel model = with.run.Load();
  ReportExtraTensors(model);
  RequireFits(workload, model.spec);
  const std::optional<Tokenizer> tokenizer = LoadTokenizer(workload, model);
  const auto batch = static_cast<int32_t>(
      std::min<int64_t>(flags.max_batch, static_cast<int64_t>(workload.requests.size())));
  DecoderOptions options = with.run.Options(model.spec, batch, workload.MaxContext());
  options.token_budget = flags.token_budget;
  options.reuse = flags.reuse;
  options.sharing = flags.sharing.value_or(options.sharing);
  options.delayed = DelayedBy(with.op_delay, options.device);
  DecoderConfig(model.spec, options, {});
  with.record.RequirePeaksOf(options.device);
  SizeKvForWorkload(with.run.kv, model, options);

  CatchInterrupts();
  RunHeader header = MakeRunHeader(line, "tokline bench", options.device, with.record);
  header.injected = with.injected;
  record.Start(header);
  const std::string device_name = DeviceName(options.device, header.fingerprint);
  WorkloadMeasurement measurement{.origin = {.run_id = header.run_id,
                                             .implementation = with.run.Implementation(),
                                             .dtype = std::string(Name(options.dtype)),
                                             .device = device_name},
                                  .model = model.Name(),
                                  .shape = ShapeOf(workload, flags, with.run.kv, options)};
  Print(
      StrCat(model.Name(), ", ", Name(options.dtype), ", ", measurement.origin.implementation,
             " on ", device_name, ", workload ", workload.name, ": ", workload.requests.size(),
             " requests, at most ", batch, " at a time\n",
             header.injected.is_null() ? "" : StrCat("injected: ", header.injected.dump(), "\n")));
  Json memory;
  const auto make_stop_reader = [&](std::span<const std::string> stops) {
    return ReadUntil(*tokenizer, stops);
  };
  Measure(model, options, workload, make_stop_reader,
          with.repeats.value_or(options.device == Device::kCuda ? 3 : 1), header.fingerprint,
          measurement, memory);
  const Json row = WorkloadRow(measurement);
  const WorkloadFigures figures = FiguresOf(measurement);
  const bool stands = figures.refusal.empty();
  Print(stands ? WorkloadText(measurement, figures) : StrCat("refused: ", figures.refusal, "\n"));
  Print(StrCat("memory            ", MemoryText(memory), "\n"));
  if (stands) Print(StrCat("growth            ", GrowthText(measurement.memory_points), "\n"));
  record.Add(row, stands);
  record.Finish(measurement.trouble.interrupted);
  if (file) {
    Json report = row;
    report["memory_report"] = std::move(memory);
    file->Write(report.dump() + "\n");
    file->Commit();
  }
  if (measurement.trouble.interrupted) return kInterruptedExit;
  if (!stands) throw RuntimeFailure(StrCat("the row was refused: ", figures.refusal));
  return kSuccess;
}

}  // namespace tokline
