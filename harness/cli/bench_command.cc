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
  void Add(const DecoderMeasurement& measurement) {
    Append(DecoderRow(measurement));
    ++end_.rows;
    if (measurement.interrupted) ++end_.refused;
  }
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

Json ResultJson(const BenchResult& result) {
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
          {"interrupted", result.interrupted},
          {"samples", std::move(samples)}};
}

std::string TableRow(const BenchResult& result) {
  char text[160];
  if (result.samples.empty()) {
    std::snprintf(text, sizeof(text), "%6d  interrupted\n", result.options.batch);
  } else {
    std::snprintf(text, sizeof(text), "%6d %14.1f %14.1f %12.4f %11.1f%% %s\n",
                  result.options.batch, result.prefill_tokens_per_s, result.decode_tokens_per_s,
                  result.ms_per_step, 100 * result.host_share,
                  result.interrupted ? "interrupted" : "");
  }
  return text;
}

}  // namespace

std::string BenchHelp() {
  BenchFlags flags;
  return FlagHelp(flags.Table());
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
  MakeBackend(device);  // throws where there is none
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
               " batch  prefill tok/s   decode tok/s ms per token  host share\n"));

  Json rows = Json::array();
  bool interrupted = false;
  for (size_t i = 0; i < benches.size() && !interrupted; ++i) {
    Decoder decoder = MakeDecoder(model, decoders[i]);
    const BenchResult result = RunBench(decoder, benches[i]);
    interrupted = result.interrupted;
    Print(TableRow(result));
    rows.push_back(ResultJson(result));
    record.Add({.run_id = header.run_id,
                .implementation = implementation,
                .model = model.Name(),
                .dtype = std::string(Name(dtype)),
                .device = device_name,
                .batch = benches[i].batch,
                .prompt_tokens = benches[i].prompt_tokens,
                .new_tokens = benches[i].new_tokens,
                .prefill_tok_s = result.prefill_tokens_per_s,
                .decode_tok_s = result.decode_tokens_per_s,
                .ms_per_token = result.ms_per_step,
                .host_share = result.host_share,
                .interrupted = result.interrupted});
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
  return interrupted ? kInterruptedExit : kSuccess;
}

}  // namespace tokline
