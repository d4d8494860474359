// tokline bench: measures tokens per second and latencies for each combination of batch, prompt
// length, new tokens and depth.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/cli/latency_text.h"
#include "harness/cli/memory_text.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/cli/record_flags.h"
#include "harness/cli/status_line.h"
#include "harness/cli/workload_bench.h"
#include "harness/engine/make_decoder.h"
#include "harness/measure/delay.h"
#include "harness/measure/nvml.h"
#include "harness/measure/op_delay.h"
#include "harness/measure/ops_in_place.h"
#include "harness/measure/profile_table.h"
#include "harness/measure/step_profiler.h"
#include "harness/measure/text_judge.h"
#include "harness/measure/throughput.h"
#include "harness/measure/timing.h"
#include "harness/platform/interrupt.h"
#include "harness/platform/printable.h"
#include "harness/record/memory_report.h"
#include "harness/record/record.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

struct BenchFlags {
  RunFlags run;
  std::vector<int64_t> ranks = {DefaultRanks()};
  std::vector<int64_t> batches = {1, 8, 64};
  std::vector<int64_t> prompts = {BenchOptions().prompt_tokens};
  std::vector<int64_t> new_tokens = {BenchOptions().new_tokens};
  std::vector<int64_t> depths = {BenchOptions().depth};
  BenchOptions bench;
  std::optional<int32_t> repeats;
  RecordFlags record;
  std::optional<bool> profile;
  bool in_place = false;
  std::optional<OpDelay> op_delay;
  WorkloadFlags workload;

  std::vector<Flag> Table() {
    std::vector<Flag> flags;
    run.AddTo(flags);
    run.AddWeightsTo(flags);
    run.AddRankLimitTo(flags);
    flags.insert(flags.end(),
                 {{"--tp", "N,...", kRanksHelp,
                   [this](auto flag, auto text) {
                     ranks = ParseIntegers(flag, text, 1, kMaxRanks);
                     TakeRanks(flag, ranks);
                   }},
                  {"--batch", "1,8,64", "batch sizes (default: 1,8,64)",
                   IntegersInto(batches, 1, kMaxBatch)},
                  {"--prompt-tokens", "N,...", "prompt tokens per sequence (default: 128)",
                   IntegersInto(prompts, 1, INT32_MAX)},
                  {"--new-tokens", "N,...", "new tokens per sequence, at least 2 (default: 128)",
                   IntegersInto(new_tokens, 2, INT32_MAX)},
                  {"--depth", "N,...",
                   "tokens per sequence that are in the KV cache before the prompt (default: 0)",
                   IntegersInto(depths, 0, INT32_MAX)},
                  {"--repeats", "N",
                   "repeats after the warm-up (default: 5; with --workload 3 on cuda, 1 on cpu)",
                   IntegerInto(repeats, 1, 1000)},
                  {"--seed", "N", "seed of the prompts, or of the arrivals of --rates (default: 0)",
                   SeedInto(bench.seed)}});
    record.AddTo(flags);
    flags.push_back({"--profile", "on|off",
                     "profile a decode step; on prints it (default: write it without printing)",
                     [this](auto flag, auto text) { profile = ParseOnOff(flag, text); }});
    flags.push_back({"--in-place", "on|off",
                     "time each op of the step where it runs, beside its profile (default: off)",
                     [this](auto flag, auto text) { in_place = ParseOnOff(flag, text); }});
    workload.AddTo(flags);
    flags.insert(
        flags.end(),
        {{"--inject-op-delay", "OP:US", "to test the tools: delay by US after each launch of an op",
          [this](auto flag, auto text) { op_delay = ParseOpDelay(flag, text); }},
         {"--inject-host-delay", "US",
          "to test the tools: delay the host by US after each decode step",
          [this](auto flag, auto text) { bench.host_delay_us = ParseDelay(flag, text); }}});
    return flags;
  }

  // Throws InvalidArgument for a flag that would be ignored.
  void RequireApplicable(const std::set<std::string_view>& given) {
    const bool of_workload = !workload.workload.empty();
    for (const char* flag : {"--batch", "--prompt-tokens", "--new-tokens", "--depth", "--seed",
                             "--inject-host-delay"}) {
      if (flag == std::string_view("--seed") && !workload.rates.empty()) continue;
      Require(!of_workload || !given.contains(flag), flag, " cannot be used with --workload");
    }
    Require(!of_workload || !profile.value_or(false),
            "--profile on cannot be used with --workload");
    Require(!of_workload || !in_place, "--in-place on cannot be used with --workload");
    Require(!of_workload || ranks.size() == 1, "--tp has ", ranks.size(),
            " numbers of ranks; with --workload it takes one");
    Require(!in_place || ranks == std::vector<int64_t>{1},
            "--in-place on takes ops out of the step, which several ranks cannot; it needs --tp 1");
    Require(!in_place || profile.value_or(true),
            "--in-place on needs the profile that --profile off leaves out");
    std::vector<Flag> flags;
    workload.AddTo(flags);
    for (const Flag& flag : flags) {
      Require(of_workload || !given.contains(flag.name), flag.name, " needs --workload");
    }
  }
  // Returns every combination, with the batch sizes of one shape after one another.
  std::vector<BenchOptions> Sweep() const {
    constexpr size_t kMaxRows = 1000;
    // of a row; the times of all of them are kept
    constexpr int64_t kMaxTimes = int64_t{1} << 26;
    const size_t rows = batches.size() * prompts.size() * new_tokens.size() * depths.size();
    Require(rows <= kMaxRows, "--batch, --prompt-tokens, --new-tokens and --depth have ", rows,
            " combinations; at most ", kMaxRows, " are allowed");
    std::vector<BenchOptions> sweep;
    for (const int64_t prompt : prompts) {
      for (const int64_t fresh : new_tokens) {
        for (const int64_t depth : depths) {
          for (const int64_t batch : batches) {
            Require(batch * fresh * bench.repeats <= kMaxTimes, bench.repeats, " repeats of batch ",
                    batch, " with ", fresh, " new tokens have ", batch * fresh * bench.repeats,
                    " tokens to time; at most ", kMaxTimes, " are allowed");
            sweep.push_back(bench);
            sweep.back().batch = static_cast<int32_t>(batch);
            sweep.back().depth = depth;
            sweep.back().prompt_tokens = prompt;
            sweep.back().new_tokens = fresh;
          }
        }
      }
    }
    return sweep;
  }
  // The flags of a run on this number of ranks.
  RunFlags OnRanks(int64_t number) const {
    RunFlags on = run;
    on.ranks = static_cast<int32_t>(number);
    return on;
  }
  // Whether to make profiles: by default only if they will be shown or recorded.
  bool Profiles() const {
    return profile.value_or(in_place || !record.record.empty() || !record.json.empty());
  }
  // The injected delays as written to records.
  Json Injected() const {
    Json injected = nullptr;
    if (op_delay) injected = {{"op", Name(op_delay->op)}, {"op_delay_us", op_delay->us}};
    if (bench.host_delay_us > 0) injected["host_delay_us"] = bench.host_delay_us;
    return injected;
  }

 private:
  static FlagSetter IntegersInto(std::vector<int64_t>& target, int64_t least, int64_t most) {
    return [=, &target](auto flag, auto text) { target = ParseIntegers(flag, text, least, most); };
  }
  static bool ParseOnOff(std::string_view flag, std::string_view text) {
    constexpr std::array<std::string_view, 2> kChoices = {"off", "on"};
    return ParseChoice(flag, text, kChoices) == 1;
  }
  static double ParseDelay(std::string_view flag, std::string_view text) {
    const double us = ParseReal(flag, text);
    Require(us > 0 && us <= kMaxDelayUs, flag, " is ", Quoted(text),
            "; it must be more than 0 and at most ", kMaxDelayUs, " microseconds");
    return us;
  }
  static OpDelay ParseOpDelay(std::string_view flag, std::string_view text) {
    const size_t colon = text.rfind(':');
    Require(colon != text.npos, flag, " is ", Quoted(text),
            "; it must be an op and microseconds, such as down:20");
    return {.op = ParseStepOp(text.substr(0, colon)),
            .us = ParseDelay(flag, text.substr(colon + 1))};
  }
};

// "cold" if a step moves more data than the L2 keeps until the next step.
std::string CacheLabel(const Cost& step, const Fingerprint& fingerprint) {
  if (!fingerprint.gpu) return "cpu";
  const auto l2_bytes = static_cast<double>(fingerprint.gpu->l2_bytes);
  return step.Bytes() > kColdL2Multiple * l2_bytes ? "cold" : "warm";
}

DecoderMeasurement MeasurementOf(const BenchResult& result, const RunHeader& header,
                                 const LoadedModel& model, const DecoderOptions& options) {
  const BenchOptions& bench = result.options;
  const ModelShard shard = ShardModel(model.spec, options.ranks, 0);
  const int64_t parameters =
      options.ranks == 1 ? model.weights.parameters : ParametersOf(shard.local);
  const Cost step = DecodeStepCost(shard.local, parameters, options.dtype, bench);
  DecoderMeasurement measurement{
      .origin = {.run_id = header.run_id, .dtype = std::string(Name(options.dtype))},
      .model = model.Name(),
      .cache = CacheLabel(step, header.fingerprint),
      .shape = {.batch = bench.batch,
                .depth = bench.depth,
                .prompt_tokens = bench.prompt_tokens,
                .new_tokens = bench.new_tokens},
      .page_size = options.page_size,
      .ranks = options.ranks,
      .cost = step,
      .link_bytes = options.ranks == 1 ? 0 : DecodeStepLinkBytes(shard, options.dtype, bench),
      .samples = {.host_share = result.host_share, .latencies = result.latencies},
      .limits = {.peaks = header.peaks, .datasheet = header.datasheet},
      .trouble = {.interrupted = result.interrupted}};
  for (const BenchSample& sample : result.samples) {
    measurement.samples.prefill_s.push_back(sample.prefill_s);
    measurement.samples.step_ms.push_back(1e3 * sample.decode_s /
                                          static_cast<double>(bench.new_tokens - 1));
  }
  return measurement;
}

struct MeasuredBatch {
  BenchResult result;
  std::optional<UntracedSteps> untraced = {};
  std::exception_ptr untraced_failure = {};  // the figures are kept
  std::vector<OpInPlace> in_place = {};
  DecoderMeasurement measurement;
  Json memory;
};

// Measures a batch, repeats the measurement once if something disturbed it, and has its texts
// judged. `profiles`: also times what a profile on a CUDA device needs.
MeasuredBatch MeasureBatch(const LoadedModel& model, const DecoderOptions& options,
                           const BenchOptions& bench, const RunHeader& header, bool profiles) {
  MeasuredBatch batch;
  BenchResult& result = batch.result;
  std::string disturbed;
  int64_t memory_bytes = 0;
  {
    const MemoryWatch watch(options.device);
    Decoder decoder = MakeDecoder(model, options);
    memory_bytes = decoder.Memory().Total();
    constexpr int kAttempts = 2;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const GpuState before = StateOf(header.fingerprint);
      result = RunBench(decoder, bench);
      disturbed = Disturbance(before, StateOf(header.fingerprint));
      if (disturbed.empty() || result.interrupted) break;
    }
    batch.memory = watch.Report(decoder);
    if (profiles && options.device == Device::kCuda && !result.interrupted) {
      BenchOptions quiet = bench;
      quiet.on_step = {};
      try {
        batch.untraced = TimeUntraced(decoder, quiet);
      } catch (...) {
        batch.untraced_failure = std::current_exception();
      }
    }
  }
  DecoderMeasurement& measurement = batch.measurement;
  measurement = MeasurementOf(result, header, model, options);
  measurement.trouble.disturbed = disturbed;
  measurement.memory_bytes = memory_bytes;
  if (!result.interrupted) {
    const Judgement judgement = TextJudge(model, options).Judge(result.texts, InterruptFlag());
    measurement.judged = {.tokens = judgement.tokens, .mean_regret = judgement.mean_regret};
    measurement.trouble.interrupted = InterruptRequested();
  }
  return batch;
}

std::optional<std::vector<OpInPlace>> TimeInPlace(const LoadedModel& model,
                                                  const DecoderOptions& options,
                                                  const BenchOptions& bench) {
  constexpr int kRounds = 25;
  Decoder decoder = MakeDecoder(model, options);
  decoder.WarmUp();
  return TimeOpsInPlace(decoder, bench, kRounds);
}

// Returns no times if it was interrupted.
std::map<StepOp, TracedTime> TimeInPlaceTraced(const LoadedModel& model,
                                               const DecoderOptions& options,
                                               const BenchOptions& bench) {
  Decoder decoder = MakeDecoder(model, options);
  decoder.WarmUp();
  return TimeOpsInPlaceTraced(decoder, bench).value_or(std::map<StepOp, TracedTime>{});
}

std::optional<ProfiledSteps> Profile(const LoadedModel& model, const DecoderOptions& options,
                                     const BenchOptions& bench,
                                     const std::optional<UntracedSteps>& untraced) {
  Decoder decoder = MakeDecoder(model, options);
  return ProfileSteps(decoder, bench, untraced);
}

// Adds to the row of a record the values that only the result has.
Json ResultJson(const BenchResult& result, Json row, int32_t ranks) {
  Json samples = Json::array();
  for (const BenchSample& sample : result.samples) {
    samples.push_back({{"prefill_s", sample.prefill_s},
                       {"decode_s", sample.decode_s},
                       {"decode_host_s", sample.decode_host_s}});
  }
  row.update(Json{{"ranks", ranks},
                  {"graphs", result.graphs},
                  {"warm_up_s", result.warm_up_s},
                  {"samples", std::move(samples)}});
  return row;
}

constexpr char kShapeHeader[] = "batch  depth prompt   new";
constexpr char kTableHeader[] = " prefill tok/s decode tok/s ms/token   of limit   host\n";

std::string ShapeCells(const BatchShape& shape) {
  const auto count = [](int64_t value) { return static_cast<long long>(value); };
  char text[100];
  std::snprintf(text, sizeof(text), "%5lld %6lld %6lld %5lld", count(shape.batch),
                count(shape.depth), count(shape.prompt_tokens), count(shape.new_tokens));
  return text;
}

// A refused result has a reason instead of figures.
std::string TableRow(const DecoderMeasurement& measurement) {
  const DecoderFigures figures = FiguresOf(measurement);
  const std::string shape = ShapeCells(measurement.shape);
  if (!figures.refusal.empty()) return StrCat(shape, " refused: ", figures.refusal, "\n");
  char share[32] = "-";
  if (figures.shares.floor) {
    std::snprintf(share, sizeof(share), "%.0f%% %s", *figures.shares.percent_of_measured_peak,
                  figures.shares.floor->limit.c_str());
  }
  char host[16] = "-";  // on the CPU the host is the device
  if (measurement.origin.device != "cpu") {
    std::snprintf(host, sizeof(host), "%.1f%%", 100 * measurement.samples.host_share);
  }
  char text[160];
  std::snprintf(text, sizeof(text), " %13.1f %12.1f %8.4f %10s %6s\n", figures.prefill_tok_s,
                figures.decode_tok_s, figures.step_ms.median, share, host);
  return shape + text;
}

// Three lines for each result that was not refused, or nothing if there is none.
std::string LatencyTable(std::span<const DecoderMeasurement> measurements) {
  std::string table;
  bool all_stated = true;
  for (const DecoderMeasurement& one : measurements) {
    if (!FiguresOf(one).refusal.empty()) continue;
    const LatencyFigures& latencies = one.samples.latencies;
    const std::string shape = ShapeCells(one.shape);
    if (one.ranks != measurements.front().ranks) table += StrCat("with ", one.ranks, " ranks\n");
    table += StrCat(shape, "  first token    ", LatencyCells(latencies.first_token_s), "\n");
    const std::string blank(shape.size(), ' ');
    table += StrCat(blank, "  between tokens ", LatencyCells(latencies.between_tokens_s), "\n");
    table += StrCat(blank, "  end to end     ", LatencyCells(latencies.end_to_end_s), "\n");
    all_stated = all_stated && latencies.first_token_s->p99 && latencies.between_tokens_s->p99;
  }
  if (table.empty()) return "";
  return StrCat("\n", kShapeHeader, "  latency in ms  ", kLatencyHeader, "\n", table,
                all_stated ? "" : kTooFew);
}

// The speed-up by more ranks. Each number of ranks has the same `shapes` shapes.
std::string SpeedUpTable(std::span<const DecoderMeasurement> measured, size_t shapes) {
  std::string table;
  for (size_t i = shapes; i < measured.size(); ++i) {
    const DecoderMeasurement &few = measured[i % shapes], &many = measured[i];
    const DecoderFigures before = FiguresOf(few), after = FiguresOf(many);
    if (!before.refusal.empty() || !after.refusal.empty()) continue;
    const double decode = after.decode_tok_s / before.decode_tok_s;
    const double prefill = after.prefill_tok_s / before.prefill_tok_s;
    const double more = static_cast<double>(many.ranks) / few.ranks;
    char text[160];
    std::snprintf(text, sizeof(text), " %6d %7.2fx %10.0f%% %8.2fx %10.0f%%\n", many.ranks, decode,
                  100 * decode / more, prefill, 100 * prefill / more);
    table += ShapeCells(many.shape) + text;
  }
  if (table.empty()) return "";
  return StrCat("\n", kShapeHeader, "  ranks  decode  efficiency  prefill  efficiency\n", table);
}

}  // namespace

std::string BenchHelp() {
  BenchFlags flags;
  const std::string ops = Joined(AllStepOps(), [](StepOp op) { return Name(op); });
  return StrCat(FlagHelp(flags.Table()), RunFlags::AblationHelp(),
                "\nOps of a decode step (a model or device may lack some): ", ops, R"(

Examples:
  tokline bench --model DIR --batch 1,8 --record out.jsonl
  tokline bench --model DIR --batch 8 --profile on
  tokline bench --model DIR --batch 8 --in-place on --record in_place.jsonl
  tokline bench --model DIR --prompt-tokens 128,1024 --depth 0,4096 --batch 1,8
  tokline bench --model DIR --tp 1,2 --batch 1,8,64
  tokline bench --model DIR --workload nano-vllm --json out.json
  tokline bench --model DIR --workload sharegpt.json --rates 1,2,4,inf --slo ttft=200,itl=20
  tokline bench --model DIR --workload synthetic:requests=100,prompt=10-500,new=50,rate=20
  tokline bench --model DIR --batch 8 --inject-op-delay down:20 --record slowed.jsonl

Exit codes: 0 every batch was measured and verified, 1 failure, 2 usage, 130 interrupted.
)");
}

int BenchCommand(const CommandLine& line) {
  BenchFlags flags;
  flags.RequireApplicable(ParseFlags("tokline bench", flags.Table(), line.args));
  flags.bench.repeats = flags.repeats.value_or(flags.bench.repeats);
  RequireDistinct({{"--json", flags.record.json}, {"--record", flags.record.record}},
                  {{"--workload", flags.workload.workload}});
  if (!flags.workload.workload.empty()) {
    return RunWorkloadBench(line, flags.workload,
                            {.run = flags.OnRanks(flags.ranks.front()),
                             .record = flags.record,
                             .repeats = flags.repeats,
                             .seed = flags.bench.seed,
                             .op_delay = flags.op_delay,
                             .injected = flags.Injected()});
  }
  flags.bench.interrupted = InterruptFlag();
  const std::vector<BenchOptions> sweep = flags.Sweep();
  OutputFile json_file(flags.record.json);
  RunRecord record(flags.record.record);
  const LoadedModel model = flags.run.Load();
  ReportExtraTensors(model);

  // Check everything before anything runs.
  std::vector<BenchOptions> benches;
  std::vector<DecoderOptions> decoders;
  for (size_t i = 0; i < flags.ranks.size() * sweep.size(); ++i) {
    const BenchOptions& bench = benches.emplace_back(sweep[i % sweep.size()]);
    const int64_t context = BenchContextTokens(bench, DecoderOptions().token_budget);
    Require(context <= model.spec.max_positions, "batch ", bench.batch, " with a depth of ",
            bench.depth, ", ", bench.prompt_tokens, " prompt tokens and ", bench.new_tokens,
            " new tokens needs ", context, " positions; the model has ", model.spec.max_positions);
    decoders.push_back(
        flags.OnRanks(flags.ranks[i / sweep.size()]).Options(model.spec, bench.batch, context));
    decoders.back().delayed = DelayedBy(flags.op_delay, decoders.back().device);
    DecoderConfig(model.spec, decoders.back(), {});
    SizeKvForBatch(flags.run.kv, model, decoders.back());
  }
  const Device device = decoders.front().device;
  flags.record.RequirePeaksOf(device);
  const std::unique_ptr<Backend> backend = MakeBackend(device);  // throws if there is no device
  for (const DecoderOptions& options : decoders) {
    if (device == Device::kCpu) break;  // the system allocates pages when they are touched
    RequireRoom(MemoryNeedsOf(model.spec, options, backend->facts()), backend->FreeBytes());
  }
  for (const DecoderOptions& options : decoders) {
    const DecoderConfig config(model.spec, options, backend->facts());
    Require(!flags.in_place || !config.RunsAsOneKernel(options.max_batch),
            "--in-place on times the ops of a chain, but steps of ", options.max_batch,
            " tokens run as one kernel; --ablate persistent makes them chains");
  }
  const DType dtype = decoders.front().dtype;

  CatchInterrupts();
  RunHeader header = MakeRunHeader(line, "tokline bench", device, flags.record,
                                   static_cast<int32_t>(std::ranges::max(flags.ranks)));
  header.injected = flags.Injected();
  record.Start(header);
  const std::string device_name = DeviceName(device, header.fingerprint);
  const std::string implementation = flags.OnRanks(flags.ranks.front()).Implementation();
  Print(StrCat(model.Name(), ", ", Name(dtype), ", ", implementation, " on ", device_name, "\n",
               header.injected.is_null() ? "" : StrCat("injected: ", header.injected.dump(), "\n"),
               kShapeHeader, kTableHeader));

  Json rows = Json::array();
  const auto add = [&](const MeasuredBatch& batch) {
    const Json row = DecoderRow(batch.measurement);
    const bool stands = FiguresOf(batch.measurement).refusal.empty();
    rows.push_back(ResultJson(batch.result, row, batch.measurement.ranks));
    rows.back()["memory"] = batch.memory;
    record.Add(row, stands);
  };
  // Make profiles only after all timing is done, so that no trace runs during or before a
  // measurement.
  std::vector<MeasuredBatch> unprofiled;
  std::vector<DecoderMeasurement> measured;
  bool interrupted = false;
  Json last_memory;
  ProgressLine progress;
  for (size_t i = 0; i < benches.size() && !interrupted; ++i) {
    const int32_t ranks = decoders[i].ranks;
    if (i > 0 && ranks != decoders[i - 1].ranks) Print(StrCat("with ", ranks, " ranks\n"));
    benches[i].on_step = progress.Steps(device, (benches[i].repeats + 1) * RepeatTokens(benches[i]),
                                        StrCat("tokens of row ", i + 1, " of ", benches.size()));
    MeasuredBatch batch = MeasureBatch(model, decoders[i], benches[i], header, flags.Profiles());
    benches[i].on_step = {};
    progress.Clear();
    batch.measurement.origin.implementation = flags.OnRanks(ranks).Implementation();
    batch.measurement.origin.device = device_name;
    interrupted = batch.measurement.trouble.interrupted;
    last_memory = batch.memory;
    Print(TableRow(batch.measurement));
    measured.push_back(batch.measurement);
    if (flags.in_place && !interrupted) {
      const auto times = TimeInPlace(model, decoders[i], benches[i]);
      interrupted = !times;
      if (times) batch.in_place = *times;
    }
    if (flags.Profiles()) {
      unprofiled.push_back(std::move(batch));
    } else {
      add(batch);
    }
  }
  Print(StrCat(LatencyTable(measured), SpeedUpTable(measured, sweep.size()),
               "memory of the last batch: ", MemoryText(last_memory), "\n"));
  std::exception_ptr failure;  // failure of a profile; earlier measurements are kept
  for (size_t i = 0; i < unprofiled.size(); ++i) {
    MeasuredBatch& batch = unprofiled[i];
    interrupted = interrupted || InterruptRequested();
    if (!failure) failure = batch.untraced_failure;
    if (!interrupted && !failure && FiguresOf(batch.measurement).refusal.empty()) {
      try {
        std::optional<ProfiledSteps> profiled =
            Profile(model, decoders[i], benches[i], batch.untraced);
        std::map<StepOp, TracedTime> traced;
        if (profiled && profiled->profile.method == "cupti" && flags.in_place) {
          traced = TimeInPlaceTraced(model, decoders[i], benches[i]);
        }
        if (profiled) {
          AddInPlaceTimes(batch.in_place, traced, profiled->profile);
          batch.measurement.profile = profiled->profile;
        }
        if (profiled && (flags.profile || flags.in_place)) {
          Print(ProfileTable(benches[i], *profiled, batch.result.ms_per_step));
        }
      } catch (...) {
        failure = std::current_exception();
      }
    }
    add(batch);
  }
  interrupted = interrupted || InterruptRequested();
  record.Finish(interrupted);
  json_file.CommitJson({{"model", model.Name()},
                        {"device", device_name},
                        {"implementation", implementation},
                        {"dtype", Name(dtype)},
                        {"seed", flags.bench.seed},
                        {"interrupted", interrupted},
                        {"rows", std::move(rows)}});
  if (failure) std::rethrow_exception(failure);
  if (interrupted) return kInterruptedExit;
  if (record.Refused() > 0) {
    throw RuntimeFailure(StrCat(record.Refused(), " of ", benches.size(), " rows were refused"));
  }
  return kSuccess;
}

}  // namespace tokline
