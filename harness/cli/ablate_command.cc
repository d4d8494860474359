// tokline ablate: measures what each custom or fused op is worth, alone and in the decoder.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/cli/model_run.h"
#include "harness/cli/output_file.h"
#include "harness/cli/record_flags.h"
#include "harness/cli/status_line.h"
#include "harness/engine/make_decoder.h"
#include "harness/measure/ablation_bench.h"
#include "harness/measure/speed_up.h"
#include "harness/measure/text_judge.h"
#include "harness/platform/interrupt.h"
#include "harness/record/record.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

struct AblateFlags {
  RunFlags run;
  BenchOptions bench{.batch = 8, .prompt_tokens = 128, .new_tokens = 64, .repeats = 8};
  std::string only;
  RecordFlags record;

  std::vector<Flag> Table() {
    std::vector<Flag> flags;
    run.AddTo(flags);
    run.AddWeightsTo(flags);
    flags.insert(
        flags.end(),
        {{"--batch", "N", "batch size (default: 8)", IntegerInto(bench.batch, 1, kMaxBatch)},
         {"--prompt-tokens", "N", "prompt tokens per sequence (default: 128)",
          IntegerInto(bench.prompt_tokens, 1, INT32_MAX)},
         {"--new-tokens", "N", "new tokens per sequence, at least 2 (default: 64)",
          IntegerInto(bench.new_tokens, 2, INT32_MAX)},
         {"--rounds", "N",
          "rounds for each order of making the decoders (default: 8; a verdict needs 6)",
          IntegerInto(bench.repeats, 1, 1000)},
         {"--only", "NAMES", "ablations to run, separated by commas (default: all)",
          [this](auto, auto text) {
            only = text;
            ParseAblations(text);
          }},
         {"--seed", "N", "seed of the prompts and the order (default: 0)", SeedInto(bench.seed)},
         {"--tp", "1", "ranks; more than one cannot be compared",
          [](auto flag, auto text) { RequireOneRank(ParseInteger(flag, text, 1, kMaxRanks)); }}});
    record.AddTo(flags);
    return flags;
  }

  // The records of ablations do not tell ranks apart.
  static void RequireOneRank(int64_t ranks) {
    Require(ranks == 1, "ablate takes 1 rank, not ", ranks, "; tokline bench --tp ", ranks,
            " with and without --ablate NAME shows what an op is worth to several");
  }
  // Returns the ablations to run, in a fixed order. Throws InvalidArgument if one is requested that
  // --ablate already removes from both decoders.
  std::vector<AblationEntry> Entries() const {
    const AblationSet asked = ParseAblations(only);
    std::vector<AblationEntry> entries;
    for (const AblationEntry& entry : AllAblations()) {
      Require(!asked.Has(entry.ablation) || !run.ablate.Has(entry.ablation), "--only has ",
              entry.name, ", which --ablate removes from both decoders");
      const bool wanted = asked.Empty() || asked.Has(entry.ablation);
      if (wanted && !run.ablate.Has(entry.ablation)) entries.push_back(entry);
    }
    return entries;
  }
};

// Removes the ablations that swap nothing in this model or on this device. Throws InvalidArgument
// if such an ablation was requested, or if none is left.
void RemoveInapplicable(const ModelSpec& spec, Device device, bool asked,
                        std::vector<AblationEntry>& entries) {
  std::erase_if(entries, [&](const AblationEntry& entry) {
    const bool in_model = Swaps(spec, entry.ablation);
    Require(in_model || !asked, "--only has ", entry.name,
            ", which swaps nothing in a model of the ", spec.family,
            " family, because no fused op does that work for it");
    const bool on_one_rank = SwapsOnOneRank(entry.ablation);
    Require(on_one_rank || !asked, "--only has ", entry.name,
            ", which swaps nothing where one rank has the whole model; `tokline bench --tp N` with "
            "and without --ablate ",
            entry.name, " shows what it is worth");
    const bool on_device = device != Device::kCpu || SwapsOnCpu(entry.ablation);
    Require(on_device || !asked, "--only has ", entry.name,
            ", which swaps nothing on the CPU, where the same references run with and without it");
    return !in_model || !on_one_rank || !on_device;
  });
  Require(!entries.empty(),
          "nothing is left to run: --ablate removes every op that could be swapped in this model "
          "on this device");
}

// What all ablations of a run have in common.
struct AblateRun {
  const LoadedModel& model;
  const DecoderOptions& options;  // for the decoder with all ops
  const BenchOptions& bench;
  TextJudge& judge;
};

// Says why the texts are invalid, or returns "".
std::string WrongTexts(TextJudge& judge, std::span<const BenchText> texts, const char* decoder) {
  const Judgement judgement = judge.Judge(texts, InterruptFlag());
  if (judgement.tokens == 0 || judgement.mean_regret <= kMaxMeanRegret) return "";
  return StrCat("the decoder ", decoder, " the op writes wrong texts: mean regret ",
                judgement.mean_regret, ", at most ", kMaxMeanRegret, " is allowed");
}

// A control compares two decoders with the same ops in different memory; their difference is
// measurement noise. This many controls run before the ablations.
constexpr int kControls = 4;
constexpr char kControl[] = "control";
constexpr char kControlInstead[] = "the same ops in different memory";

// A decoder to be compared with the one that has all ops.
struct Trial {
  std::optional<Ablation> ablation;  // empty for a control
  std::string_view name, instead;
  StepOpSet ops;
};

std::vector<Trial> TrialsOf(std::span<const AblationEntry> entries) {
  const Trial control{.name = kControl, .instead = kControlInstead, .ops = StepOpSet(AllStepOps())};
  std::vector<Trial> trials(kControls, control);
  for (const AblationEntry& entry : entries) {
    trials.push_back({entry.ablation, entry.name, entry.instead, entry.ops});
  }
  return trials;
}

struct MeasuredAblation {
  AblationRounds rounds;
  std::string failure;  // "" on success
  bool interrupted = false;
};

AblationRounds RunInOrder(const AblateRun& run, const Trial& trial, bool with_first) {
  // The worth of an op of the chain shows only between two decoders that run chains.
  DecoderOptions options = run.options;
  if (trial.ablation && trial.ablation != Ablation::kPersistent && NeedsChain(*trial.ablation)) {
    options.ablate.Add(Ablation::kPersistent);
  }
  DecoderOptions ablated = options;
  if (trial.ablation) ablated.ablate.Add(*trial.ablation);
  Decoder first = MakeDecoder(run.model, with_first ? options : ablated);
  Decoder second = MakeDecoder(run.model, with_first ? ablated : options);
  first.WarmUp();
  second.WarmUp();
  return with_first ? RunAblation(first, second, trial.ops, run.bench)
                    : RunAblation(second, first, trial.ops, run.bench);
}

// Makes both decoders twice, once in each order: their place in memory affects the measurement and
// must favour neither.
AblationRounds RunTrial(const AblateRun& run, const Trial& trial) {
  AblationRounds one = RunInOrder(run, trial, /*with_first=*/true);
  if (one.interrupted) return one;
  AblationRounds other = RunInOrder(run, trial, /*with_first=*/false);
  return other.interrupted ? other : MeanOfOrders(one, other);
}

MeasuredAblation Measure(const AblateRun& run, const Trial& trial) {
  MeasuredAblation measured;
  try {
    measured.rounds = RunTrial(run, trial);
    measured.interrupted = measured.rounds.interrupted;
    if (!measured.interrupted) {
      measured.failure = WrongTexts(run.judge, measured.rounds.with.texts, "with");
    }
    if (!measured.interrupted && measured.failure.empty()) {
      measured.failure = WrongTexts(run.judge, measured.rounds.without.texts, "without");
    }
  } catch (const CudaError&) {
    throw;
  } catch (const RuntimeFailure& failure) {
    measured.failure = failure.what();  // usually out of memory; other ablations may need less
  }
  measured.interrupted = measured.interrupted || InterruptRequested();
  return measured;
}

AblationMeasurement MeasurementOf(const MeasuredAblation& measured, const Trial& trial,
                                  const AblateRun& run, const RunHeader& header) {
  const AblationSide &with = measured.rounds.with, &without = measured.rounds.without;
  AblationMeasurement measurement{
      .origin = {.run_id = header.run_id,
                 .dtype = std::string(Name(run.options.dtype)),
                 .device = DeviceName(run.options.device, header.fingerprint)},
      .model = run.model.Name(),
      .shape = {.batch = run.bench.batch,
                .prompt_tokens = run.bench.prompt_tokens,
                .new_tokens = run.bench.new_tokens},
      .name = std::string(trial.name),
      .instead = std::string(trial.instead),
      .end_to_end_ms = {.with = with.decode_ms, .without = without.decode_ms},
      .trouble = {.interrupted = measured.interrupted, .failure = measured.failure}};
  if (!with.alone_us.empty()) {
    measurement.isolated_us = PairedSamples{.with = with.alone_us, .without = without.alone_us};
  }
  return measurement;
}

// The speed-ups of a valid ablation.
struct SpeedUps {
  explicit SpeedUps(const AblationRounds& rounds)
      : decode(rounds.with.decode_ms, rounds.without.decode_ms),
        prefill(rounds.with.prefill_ms, rounds.without.prefill_ms) {
    if (!rounds.with.alone_us.empty()) {
      alone.emplace(rounds.with.alone_us, rounds.without.alone_us);
    }
  }
  SpeedUp decode, prefill;
  std::optional<SpeedUp> alone;
};

constexpr char kAblationHeader[] =
    " op               alone   decode  prefill  (time without it over time with it)\n";

// The largest differences seen between decoders with the same ops.
struct Controls {
  void Add(const SpeedUps& gains) {
    decode = std::max(decode, std::abs(gains.decode.ratio - 1));
    alone = std::max(alone, std::abs(gains.alone->ratio - 1));
  }
  double alone = 0, decode = 0;
};

std::string Verdict(const Trial& trial, const SpeedUps& gains, const Controls& controls) {
  if (!trial.ablation) return "the same ops: what decoders differ by";
  return AblationVerdict(gains.alone, gains.decode, controls.alone, controls.decode);
}

std::string TableRow(const std::string& name, const std::string& refusal,
                     const std::optional<SpeedUps>& gains, const std::string& verdict) {
  char text[160];
  if (!gains) {
    std::snprintf(text, sizeof(text), " %-13s refused: ", name.c_str());
    return StrCat(text, refusal, "\n");
  }
  char alone[16] = "-";
  if (gains->alone) std::snprintf(alone, sizeof(alone), "%.3fx", gains->alone->ratio);
  std::snprintf(text, sizeof(text), " %-13s %8s %7.3fx %7.3fx  ", name.c_str(), alone,
                gains->decode.ratio, gains->prefill.ratio);
  return StrCat(text, verdict, "\n");
}

Json ToJson(const SpeedUp& gain) {
  Json ci95 = nullptr;
  if (gain.HasInterval()) ci95 = {gain.interval.low, gain.interval.high};
  return {{"ratio", gain.ratio}, {"ci95", std::move(ci95)}};
}

// Adds to the row of a record the values that only the rounds have.
Json ResultJson(Json row, const AblationRounds& rounds, const std::optional<SpeedUps>& gains,
                const std::string& verdict) {
  if (!gains) return row;
  row["prefill"] = {{"with_ms", rounds.with.prefill_ms}, {"without_ms", rounds.without.prefill_ms}};
  row["speed_up"] = {{"alone", gains->alone ? ToJson(*gains->alone) : Json(nullptr)},
                     {"decode", ToJson(gains->decode)},
                     {"prefill", ToJson(gains->prefill)}};
  row["verdict"] = verdict;
  return row;
}

}  // namespace

std::string AblateHelp() {
  AblateFlags flags;
  return StrCat(FlagHelp(flags.Table()), RunFlags::AblationHelp(), R"(
Each ablation is compared with a decoder that has all ops. What --ablate names is removed from both.
The first 4 trials are controls that swap nothing; an effect no larger than theirs does not count.
"alone" times the op's own launches at the decoder's shapes, "decode" a whole decode step.

Examples:
  tokline ablate --model DIR
  tokline ablate --model DIR --batch 1 --only chunk_decode,fused_mlp --record ablation.jsonl

Exit codes: 0 every ablation was measured and verified, 1 failure, 2 usage, 130 interrupted.
)");
}

int AblateCommand(const CommandLine& line) {
  AblateFlags flags;
  ParseFlags("tokline ablate", flags.Table(), line.args);
  AblateFlags::RequireOneRank(DefaultRanks());
  RequireDistinct({{"--json", flags.record.json}, {"--record", flags.record.record}});
  std::vector<AblationEntry> entries = flags.Entries();
  OutputFile json_file(flags.record.json);
  RunRecord record(flags.record.record);
  const LoadedModel model = flags.run.Load();
  RemoveInapplicable(model.spec, flags.run.ChosenDevice(), !flags.only.empty(), entries);
  BenchOptions& bench = flags.bench;
  bench.interrupted = InterruptFlag();
  Require(flags.run.kv.fraction == 0, "--kv-fraction is ", flags.run.kv.fraction,
          "; an ablation has several decoders at a time, so use --kv-pages, --kv-bytes or the "
          "default size");
  const int64_t context = BenchContextTokens(bench, DecoderOptions().token_budget);
  Require(context <= model.spec.max_positions, "batch ", bench.batch, " with ", bench.prompt_tokens,
          " prompt tokens and ", bench.new_tokens, " new tokens needs ", context,
          " positions; the model has ", model.spec.max_positions);
  DecoderOptions options = flags.run.Options(model.spec, bench.batch, context);
  DecoderConfig(model.spec, options, {});
  SizeKvForBatch(flags.run.kv, model, options);
  flags.record.RequirePeaksOf(options.device);

  CatchInterrupts();
  TextJudge judge(model, options);  // throws if there is no device
  const RunHeader header = MakeRunHeader(line, "tokline ablate", options.device, flags.record);
  record.Start(header);
  Print(StrCat(model.Name(), ", ", Name(options.dtype), " on ",
               DeviceName(options.device, header.fingerprint), ", batch ", bench.batch, ", ",
               bench.prompt_tokens, " prompt and ", bench.new_tokens, " new tokens, ",
               bench.repeats, " rounds",
               flags.run.ablated.empty() ? "" : ", all without " + flags.run.ablated, "\n",
               kAblationHeader));
  const AblateRun run{.model = model, .options = options, .bench = bench, .judge = judge};
  Json results = Json::array();
  bool interrupted = false;
  Controls controls;
  const std::vector<Trial> trials = TrialsOf(entries);
  ProgressLine progress;
  for (size_t i = 0; i < trials.size(); ++i) {
    const Trial& trial = trials[i];
    constexpr int64_t kDecoders = 4;  // with the op and without it, made in either order
    bench.on_step =
        progress.Steps(options.device, kDecoders * (bench.repeats + 1) * RepeatTokens(bench),
                       StrCat("tokens of trial ", i + 1, " of ", trials.size()));
    const MeasuredAblation measured = Measure(run, trial);
    progress.Clear();
    const AblationMeasurement measurement = MeasurementOf(measured, trial, run, header);
    const Json row = AblationRow(measurement);
    const std::string refusal = WhyRefused(measurement);
    std::optional<SpeedUps> gains;
    if (refusal.empty()) gains.emplace(measured.rounds);
    if (gains && !trial.ablation) controls.Add(*gains);
    const std::string verdict = gains ? Verdict(trial, *gains, controls) : "";
    record.Add(row, refusal.empty());
    Print(TableRow(measurement.name, refusal, gains, verdict));
    results.push_back(ResultJson(row, measured.rounds, gains, verdict));
    interrupted = measured.interrupted;
    if (interrupted) break;
  }
  record.Finish(interrupted);
  json_file.CommitJson({{"model", model.Name()},
                        {"device", DeviceName(options.device, header.fingerprint)},
                        {"dtype", Name(options.dtype)},
                        {"batch", bench.batch},
                        {"prompt_tokens", bench.prompt_tokens},
                        {"new_tokens", bench.new_tokens},
                        {"rounds", bench.repeats},
                        {"seed", bench.seed},
                        {"interrupted", interrupted},
                        {"ablations", std::move(results)}});
  if (interrupted) return kInterruptedExit;
  if (record.Refused() > 0) {
    throw RuntimeFailure(StrCat(record.Refused(), " of ", trials.size(), " trials were refused"));
  }
  return kSuccess;
}

}  // namespace tokline
