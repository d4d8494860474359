// Measures a workload: sizes the decoder for it, repeats it, verifies some of its texts, and writes
// one record row.
#include "harness/cli/workload_bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

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
    return StrCat("; ids=", vocab_size, " draws from all of them");
  }
  if (workload.requests[i].line == 0) return "";
  return StrCat("; beside prompt_tokens \"ids\": ", vocab_size, " draws from all of them");
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
  measurement.first_token_s = middle->first_token_s;
  measurement.between_tokens_s = middle->between_tokens_s;
  measurement.host_share = middle->host_share;
  measurement.step_host_us = middle->step_host_us;
  measurement.steps = middle->steps;
  measurement.graph_steps = middle->graph_steps;
  measurement.preemptions = middle->counts.preemptions;
  measurement.recomputed_tokens = middle->counts.recomputed_tokens;
  measurement.reused_tokens = middle->counts.reused_tokens;
  measurement.decode_read_bytes = middle->decode_read_bytes;
  measurement.decode_unshared_bytes = middle->decode_unshared_bytes;
  measurement.kv_pages = middle->kv_pages;
  measurement.mean_kv_pages = middle->mean_kv_pages;
  measurement.max_kv_pages = middle->max_kv_pages;
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
    measurement.memory = ByUse(decoder.Memory());
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
        if (!disturbed.empty()) measurement.disturbed = disturbed;
        results.push_back(std::move(result));
        break;
      }
    }
    memory = watch.Report(decoder);
  }
  measurement.interrupted = InterruptRequested();
  if (results.empty() || measurement.interrupted) return;
  const Judgement judgement = TextJudge(model, options).Of(results.back().texts, InterruptFlag());
  measurement.judged_tokens = judgement.tokens;
  measurement.drawn = std::ranges::any_of(workload.requests, [](const WorkloadRequest& one) {
    return one.request.rule.temperature > 0;
  });
  measurement.mean_regret = judgement.mean_regret;
  measurement.interrupted = InterruptRequested();
  TakeFigures(results, measurement);
}

// Describes the growth of host memory: after the warm-up, after a tenth of the requests, at the
// end.
std::string GrowthText(const Json& points) {
  const auto heap = [](const Json& point) {
    return BytesText(point["host_heap"].get<int64_t>()) + " heap";
  };
  std::string text =
      StrCat(heap(points.front()), " at the start, ", heap(points[1]), " after the warm-up");
  if (points.size() > 2) {
    text += StrCat(", ", heap(points[2]), " after ", points[2]["requests"].dump(), " requests, ",
                   heap(points.back()), " in the end");
  }
  return text;
}

}  // namespace

void WorkloadFlags::AddTo(std::vector<Flag>& flags) {
  flags.push_back({.name = "--workload",
                   .value = "WHAT",
                   .help = "requests with continuous batching instead: nano-vllm, synthetic:PARTS "
                           "or a JSON lines file",
                   .set = TextInto("--workload", workload)});
  flags.push_back({.name = "--max-batch",
                   .value = "N",
                   .help = "of a workload: requests that run at a time (default: 256)",
                   .set = IntegerInto("--max-batch", max_batch, 1, 4096)});
  flags.push_back({.name = "--token-budget",
                   .value = "N",
                   .help = "of a workload: prompt tokens a step (default: 8192)",
                   .set = IntegerInto("--token-budget", token_budget, 1, int64_t{1} << 20)});
  flags.push_back({.name = "--reuse",
                   .value = "",
                   .help = "of a workload: prompts that begin alike share K and V",
                   .set = [this](std::string_view) { reuse = true; }});
  flags.push_back(
      {.name = "--sharing",
       .value = "never|auto|always",
       .help =
           "with --reuse: decode steps read what prompts share once (default: auto, if it pays)",
       .set = [this](std::string_view text) {
         sharing = static_cast<ChunkSharing>(ParseChoice("--sharing", text, kSharingNames));
       }});
}

std::string WorkloadText(const Json& row) {
  const auto number = [&](const char* key) { return row[key].get<double>(); };
  const auto count = [&](const Json& value) { return value.get<long long>(); };
  const auto latency = [&](const char* key, const char* percentile) {
    return row[key][percentile].get<double>();
  };
  const double pages = number("kv_pages");
  char text[1400];
  std::snprintf(
      text, sizeof(text),
      "output tok/s      %12.1f\n"
      "total tok/s       %12.1f   prompt and output\n"
      "time              %12.3f s for %lld requests, %lld prompt and %lld new tokens, median of "
      "%zu\n"
      "warm-up           %12.3f s, apart\n"
      "first token       %12.1f ms median, %.1f p90, %.1f p99\n"
      "between tokens    %12.2f ms median, %.2f p90, %.2f p99\n"
      "KV cache          %11.1f%% mean, %.1f%% at most, of %lld pages\n"
      "preemptions       %12lld   %lld tokens computed again\n"
      "reused            %12lld   tokens\n"
      "decode reads      %12.1f MB of K and V, %.1f MB had each sequence read its own\n"
      "host              %11.1f%% of the time, %.0f us a step\n"
      "steps             %12lld   %lld as graphs\n"
      "verified          %12lld   tokens, mean regret %.4f\n",
      number("output_tok_s"), number("total_tok_s"), number("total_s"),
      count(row["shape"]["requests"]), count(row["shape"]["prompt_tokens"]),
      count(row["samples_new_tokens"][0]), row["samples_s"].size(), number("warm_up_s"),
      latency("first_token_ms", "median"), latency("first_token_ms", "p90"),
      latency("first_token_ms", "p99"), latency("between_tokens_ms", "median"),
      latency("between_tokens_ms", "p90"), latency("between_tokens_ms", "p99"),
      100 * number("mean_kv_pages") / pages, 100 * number("max_kv_pages") / pages,
      count(row["kv_pages"]), count(row["preemptions"]), count(row["recomputed_tokens"]),
      count(row["reused_tokens"]), 1e-6 * number("decode_read_bytes"),
      1e-6 * number("decode_unshared_bytes"), 100 * number("host_share"), number("step_host_us"),
      count(row["steps"]), count(row["graph_steps"]), count(row["verified"]["tokens"]),
      row["verified"]["mean_regret"].get<double>());
  return text;
}

int RunWorkloadBench(const CommandLine& line, const WorkloadFlags& flags, const WorkloadRun& with) {
  Require(flags.reuse || !flags.sharing,
          "--sharing is for --reuse, without which nothing is shared");
  std::optional<OutputFile> file;
  if (!with.record.json.empty()) file.emplace(with.record.json);
  RunRecord record(with.record.record);
  const Workload workload = MakeWorkload(flags.workload);
  const LoadedModel model(with.run.model);
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
  DecoderPlan(model.spec, options, {});
  with.record.RequirePeaksOf(options.device);
  SizeKvForWorkload(with.run.kv, model, options);

  CatchInterrupts();
  RunHeader header = MakeRunHeader(line, "tokline bench", options.device, with.record);
  header.injected = with.injected;
  record.Start(header);
  const std::string device_name = DeviceName(options.device, header.fingerprint);
  WorkloadMeasurement measurement;
  measurement.run_id = header.run_id;
  measurement.implementation = with.run.Implementation();
  measurement.model = model.Name();
  measurement.shape = ShapeOf(workload, flags, with.run.kv, options);
  measurement.dtype = std::string(Name(options.dtype));
  measurement.device = device_name;
  Print(
      StrCat(model.Name(), ", ", Name(options.dtype), ", ", measurement.implementation, " on ",
             device_name, ", workload ", workload.name, ": ", workload.requests.size(),
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
  const bool stands = row["status"] == "ok";
  Print(stands ? WorkloadText(row) : StrCat("refused: ", row["reason"].get<std::string>(), "\n"));
  Print(StrCat("memory            ", MemoryText(memory), "\n"));
  if (stands) Print(StrCat("growth            ", GrowthText(row["memory_points"]), "\n"));
  record.Add(row);
  record.Finish(measurement.interrupted);
  if (file) {
    Json report = row;
    report["memory_report"] = std::move(memory);
    file->Write(report.dump() + "\n");
    file->Commit();
  }
  if (measurement.interrupted) return kInterruptedExit;
  if (!stands)
    throw RuntimeFailure(StrCat("the row was refused: ", row["reason"].get<std::string>()));
  return kSuccess;
}

}  // namespace tokline
