// tokline bench: tokens per second by batch size.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/core/fingerprint.h"
#include "harness/core/interrupt.h"
#include "harness/core/peaks.h"
#include "harness/core/timing.h"
#include "harness/decoder/generate.h"
#include "harness/decoder/text_regret.h"
#include "harness/decoder/throughput.h"
#include "harness/record/record.h"
#include "harness/record/record_file.h"
#include "kernels/common/error.h"
#if TOKLINE_HAS_CUDA
#include "harness/core/device.h"
#endif

namespace tokline {
namespace {

struct BenchFlags {
  RunFlags run;
  std::vector<int64_t> batches = {1, 8, 64};
  BenchOptions bench;
  std::filesystem::path json;
  std::string record;

  std::vector<Flag> Table() {
    std::vector<Flag> flags;
    run.AddTo(flags);
    flags.push_back({.name = "--batch",
                     .value = "1,8,64",
                     .help = "sequences at a time, each measured in turn (default: 1,8,64)",
                     .set = [this](std::string_view text) {
                       batches = ParseIntegers("--batch", text, 1, 4096);
                     }});
    flags.push_back({.name = "--prompt-tokens",
                     .value = "N",
                     .help = "of each sequence (default: 128)",
                     .set = IntegerInto("--prompt-tokens", bench.prompt_tokens, 1, INT32_MAX)});
    flags.push_back({.name = "--new-tokens",
                     .value = "N",
                     .help = "of each sequence, at least 2 (default: 128)",
                     .set = IntegerInto("--new-tokens", bench.new_tokens, 2, INT32_MAX)});
    flags.push_back({.name = "--repeats",
                     .value = "N",
                     .help = "that are counted, after one that is not (default: 5)",
                     .set = IntegerInto("--repeats", bench.repeats, 1, 1000)});
    flags.push_back(
        {.name = "--seed",
         .value = "N",
         .help = "of the prompts (default: 0)",
         .set = [this](std::string_view text) { bench.seed = ParseSeed("--seed", text); }});
    flags.push_back({.name = "--json",
                     .value = "FILE",
                     .help = "write the figures and all samples",
                     .set = TextInto("--json", json)});
    flags.push_back({.name = "--record",
                     .value = "FILE",
                     .help = "append a record with the run's fingerprint, one JSON object a line",
                     .set = TextInto("--record", record)});
    return flags;
  }
};

std::string DeviceName(Device device, const Fingerprint& fingerprint) {
  if (device == Device::kCuda && fingerprint.gpu) return fingerprint.gpu->name;
  return "cpu";
}

// "cold" where a step moves more than the L2 keeps of it until the next.
std::string CacheLabel(const Cost& step, const Fingerprint& fingerprint) {
  if (!fingerprint.gpu) return "cpu";
  const auto l2_bytes = static_cast<double>(fingerprint.gpu->l2_bytes);
  return step.Bytes() > kColdL2Multiple * l2_bytes ? "cold" : "warm";
}

struct Judgement {
  int64_t tokens = 0;
  double mean_regret = 0;
};

// What a decoder without any fused or custom op says of the last tokens of the texts.
Judgement Judge(const LoadedModel& model, DecoderOptions options, std::span<const BenchText> texts,
                const std::atomic<bool>* interrupted) {
  constexpr size_t kJudgedTokens = 64;  // of a text
  options.max_batch = 1;
  options.kv_pages = 0;
  for (const AblationEntry& entry : AllAblations()) options.ablate.Add(entry.ablation);
  Decoder plain = MakeDecoder(model, options);
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> tokens;
  for (const BenchText& text : texts) {
    const auto judged =
        text.tokens.end() - static_cast<int64_t>(std::min(kJudgedTokens, text.tokens.size()));
    std::vector<int32_t> known = text.prompt;
    known.insert(known.end(), text.tokens.begin(), judged);
    GenerateResult result = Generate(plain, known,
                                     {.max_new_tokens = text.tokens.end() - judged,
                                      .force_ids = {judged, text.tokens.end()},
                                      .want_logits = true,
                                      .interrupted = interrupted});
    if (result.interrupted) return {};
    tokens.insert(tokens.end(), judged, text.tokens.end());
    std::ranges::move(result.logits, std::back_inserter(logits));
  }
  return {static_cast<int64_t>(tokens.size()), MeanRegret(logits, tokens)};
}

DecoderMeasurement MeasurementOf(const BenchResult& result, const RunHeader& header,
                                 const LoadedModel& model, DType dtype) {
  const BenchOptions& bench = result.options;
  const Cost step = DecodeStepCost(model.spec, model.weights.parameters, dtype, bench);
  DecoderMeasurement measurement{.run_id = header.run_id,
                                 .implementation = {},
                                 .model = model.Name(),
                                 .dtype = std::string(Name(dtype)),
                                 .device = {},
                                 .cache = CacheLabel(step, header.fingerprint),
                                 .batch = bench.batch,
                                 .prompt_tokens = bench.prompt_tokens,
                                 .new_tokens = bench.new_tokens,
                                 .samples_prefill_s = {},
                                 .samples_ms = {},
                                 .host_share = result.host_share,
                                 .cost = step,
                                 .interrupted = result.interrupted,
                                 .peaks = header.peaks,
                                 .datasheet = header.datasheet};
  for (const BenchSample& sample : result.samples) {
    measurement.samples_prefill_s.push_back(sample.prefill_s);
    measurement.samples_ms.push_back(1e3 * sample.decode_s /
                                     static_cast<double>(bench.new_tokens - 1));
  }
  return measurement;
}

// The records of the run, if it has any: opened before the work starts.
class RunRecord {
 public:
  explicit RunRecord(const std::string& path) {
    if (!path.empty()) writer_.emplace(path);
  }

  void Start(const RunHeader& header) {
    end_.run_id = header.run_id;
    Append(ToJson(header));
  }
  void Add(const Json& row) {
    Append(row);
    ++end_.rows;
    if (row["status"] != "ok") ++end_.refused;
  }
  int64_t Refused() const { return end_.refused; }
  void Finish(bool interrupted, const Fingerprint& fingerprint) {
    end_.interrupted = interrupted;
    if (fingerprint.gpu) end_.gpu_after = ReadGpuState(fingerprint.gpu->pci_bus_id);
    Append(ToJson(end_));
  }

 private:
  void Append(const Json& record) {
    if (writer_) writer_->Append(record);
  }

  std::optional<RecordWriter> writer_;
  RunEnd end_;
};

RunHeader MakeHeader(const CommandLine& line, Device device) {
  RunHeader header{.run_id = NewRunId(),
                   .program = "tokline bench",
                   .fingerprint = TakeFingerprint(line.argc, line.argv, device == Device::kCuda),
                   .peaks = std::nullopt,
                   .datasheet = std::nullopt};
#if TOKLINE_HAS_CUDA
  if (device == Device::kCuda) {
    header.peaks = MeasurePeaks(std::nullopt);
    header.datasheet = DatasheetOf(header.fingerprint.gpu->name);
  }
#endif
  return header;
}

// What the row says of the result, and what only the result has.
Json ResultJson(const BenchResult& result, const Json& row) {
  Json samples = Json::array();
  for (const BenchSample& sample : result.samples) {
    samples.push_back({{"prefill_s", sample.prefill_s},
                       {"decode_s", sample.decode_s},
                       {"decode_host_s", sample.decode_host_s}});
  }
  return {{"batch", result.options.batch},
          {"prefill_tok_s", result.prefill_tokens_per_s},
          {"decode_tok_s", result.decode_tokens_per_s},
          {"ms_per_token", result.ms_per_step},
          {"host_share", result.host_share},
          {"graphs", result.graphs},
          {"warm_up_s", result.warm_up_s},
          {"status", row["status"]},
          {"reason", row["reason"]},
          {"verified", row["verified"]},
          {"percent_of_measured_peak", row.value("percent_of_measured_peak", Json(nullptr))},
          {"interrupted", row["interrupted"]},
          {"samples", std::move(samples)}};
}

constexpr char kTableHeader[] =
    " batch  prefill tok/s   decode tok/s ms per token   of limit  host share  verified\n";

// A refused result has a reason in place of figures.
std::string TableRow(const Json& row) {
  char text[160];
  const int batch = row["batch"];
  if (row["status"] != "ok") {
    std::snprintf(text, sizeof(text), "%6d  refused: ", batch);
    return StrCat(text, row["reason"].get<std::string>(), "\n");
  }
  char share[32] = "-";
  if (!row["limit"].is_null()) {
    std::snprintf(share, sizeof(share), "%.0f%% %s", row["percent_of_measured_peak"].get<double>(),
                  row["limit"].get<std::string>().c_str());
  }
  std::snprintf(text, sizeof(text), "%6d %14.1f %14.1f %12.4f %10s %10.1f%% %9s\n", batch,
                row["prefill_tok_s"].get<double>(), row["decode_tok_s"].get<double>(),
                row["ms_per_token"].get<double>(), share, 100 * row["host_share"].get<double>(),
                "yes");
  return text;
}

}  // namespace

std::string BenchHelp() {
  BenchFlags flags;
  return FlagHelp(flags.Table()) + RunFlags::AblationHelp();
}

int BenchCommand(const CommandLine& line) {
  BenchFlags flags;
  ParseFlags("bench", flags.Table(), line.args);
  std::optional<OutputFile> json_file;
  if (!flags.json.empty()) json_file.emplace(flags.json);
  RunRecord record(flags.record);
  const LoadedModel model(flags.run.model);
  flags.bench.interrupted = InterruptFlag();

  // Everything is checked before anything runs.
  std::vector<BenchOptions> benches;
  std::vector<DecoderOptions> decoders;
  for (const int64_t batch : flags.batches) {
    BenchOptions bench = flags.bench;
    bench.batch = static_cast<int32_t>(batch);
    const int64_t context = BenchContextTokens(bench, DecoderOptions().token_budget);
    Require(context <= model.spec.max_positions, "batch ", batch, " with ", bench.prompt_tokens,
            " prompt tokens and ", bench.new_tokens, " new tokens takes ", context,
            " positions; the model has ", model.spec.max_positions);
    benches.push_back(bench);
    decoders.push_back(flags.run.Options(model.spec, bench.batch, context));
    DecoderPlan(model.spec, decoders.back(), {});
    RequirePages(decoders.back());
  }
  const Device device = decoders.front().device;
  const std::unique_ptr<Backend> backend = MakeBackend(device);  // throws where there is none
  for (const DecoderOptions& options : decoders) {
    if (device == Device::kCpu) break;  // backs what is touched, as it is touched
    RequireRoom(PlanMemory(model.spec, options, backend->facts()), backend->FreeBytes());
  }
  const DType dtype = decoders.front().dtype;

  CatchInterrupts();
  const RunHeader header = MakeHeader(line, device);
  record.Start(header);
  const std::string device_name = DeviceName(device, header.fingerprint);
  const std::string implementation =
      StrCat(device == Device::kCuda ? "cuda" : "reference",
             flags.run.ablated.empty() ? "" : " without " + flags.run.ablated);
  Print(StrCat(model.Name(), ", ", Name(dtype), ", ", implementation, " on ", device_name, ", ",
               flags.bench.prompt_tokens, " prompt and ", flags.bench.new_tokens, " new tokens\n",
               kTableHeader));

  Json rows = Json::array();
  bool interrupted = false;
  for (size_t i = 0; i < benches.size() && !interrupted; ++i) {
    const BenchResult result = [&] {
      Decoder decoder = MakeDecoder(model, decoders[i]);
      return RunBench(decoder, benches[i]);
    }();
    DecoderMeasurement measurement = MeasurementOf(result, header, model, dtype);
    measurement.implementation = implementation;
    measurement.device = device_name;
    if (!result.interrupted) {
      const Judgement judgement = Judge(model, decoders[i], result.texts, InterruptFlag());
      measurement.judged_tokens = judgement.tokens;
      measurement.mean_regret = judgement.mean_regret;
      measurement.interrupted = InterruptRequested();
    }
    interrupted = measurement.interrupted;
    const Json row = DecoderRow(measurement);
    Print(TableRow(row));
    rows.push_back(ResultJson(result, row));
    record.Add(row);
  }
  record.Finish(interrupted, header.fingerprint);
  if (json_file) {
    json_file->Write(Json{{"model", model.Name()},
                          {"device", device_name},
                          {"implementation", implementation},
                          {"dtype", Name(dtype)},
                          {"prompt_tokens", flags.bench.prompt_tokens},
                          {"new_tokens", flags.bench.new_tokens},
                          {"seed", flags.bench.seed},
                          {"interrupted", interrupted},
                          {"rows", std::move(rows)}}
                         .dump() +
                     "\n");
    json_file->Commit();
  }
  if (interrupted) return kInterruptedExit;
  if (record.Refused() > 0) {
    throw RuntimeFailure(StrCat(record.Refused(), " of ", benches.size(), " rows were refused"));
  }
  return kSuccess;
}

}  // namespace tokline
